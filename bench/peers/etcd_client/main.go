// Drives an etcd cluster: N submitters in a closed loop, each putting one value of a fixed size.
//
// Prints one JSON object: commits, seconds, and the latency of every commit in microseconds.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

type result struct {
	Commits     int     `json:"commits"`
	Errors      int     `json:"errors"`
	Seconds     float64 `json:"seconds"`
	LatenciesUs []int64 `json:"latencies_us"`
}

func main() {
	endpoints := flag.String("endpoints", "http://127.0.0.1:2379", "comma separated")
	submitters := flag.Int("submitters", 64, "closed loops at once")
	seconds := flag.Float64("seconds", 5, "measured time")
	warm := flag.Float64("warm", 1, "time before it that does not count")
	size := flag.Int("size", 100, "bytes of a value")
	flag.Parse()
	client, err := clientv3.New(clientv3.Config{
		Endpoints:   strings.Split(*endpoints, ","),
		DialTimeout: 5 * time.Second,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer client.Close()
	value := strings.Repeat("v", *size)
	began := time.Now()
	counted := began.Add(time.Duration(*warm * float64(time.Second)))
	ends := counted.Add(time.Duration(*seconds * float64(time.Second)))
	found := make([]result, *submitters)
	var all sync.WaitGroup
	for number := 0; number < *submitters; number++ {
		all.Add(1)
		go func(number int) {
			defer all.Done()
			key := fmt.Sprintf("bench/%d", number)
			own := &found[number]
			for {
				sent := time.Now()
				if sent.After(ends) {
					return
				}
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				_, err := client.Put(ctx, key, value)
				cancel()
				done := time.Now()
				if err != nil {
					own.Errors++
				} else if sent.After(counted) && done.Before(ends) {
					own.Commits++
					own.LatenciesUs = append(own.LatenciesUs, done.Sub(sent).Microseconds())
				}
			}
		}(number)
	}
	all.Wait()
	total := result{Seconds: *seconds}
	for _, one := range found {
		total.Commits += one.Commits
		total.Errors += one.Errors
		total.LatenciesUs = append(total.LatenciesUs, one.LatenciesUs...)
	}
	if err := json.NewEncoder(os.Stdout).Encode(total); err != nil {
		os.Exit(1)
	}
}
