// Drives the metadata leader of a Lockstep cluster: N submitters in a closed loop over one connection, each
// setting one extension value of a fixed size through the node-to-node protocol.
//
// Prints one JSON object: commits, seconds, and the latency of every commit in microseconds.
package main

import (
	"bufio"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const kindSetExtension = 8

type answer struct {
	epoch, term uint64
	failed      bool
}

type client struct {
	conn    net.Conn
	in      *bufio.Reader
	out     chan []byte
	answers []chan answer
	epoch   atomic.Uint64
	term    uint64
}

type result struct {
	Commits     int     `json:"commits"`
	Errors      int     `json:"errors"`
	Seconds     float64 `json:"seconds"`
	LatenciesUs []int64 `json:"latencies_us"`
}

func submitBody(id []byte, name string, value []byte, base, term uint64) []byte {
	change := packer{}
	change.array(2)
	change.text(name)
	change.bytes(value)
	p := packer{}
	p.array(6)
	p.bytes(id)
	p.uint(kindSetExtension)
	p.bytes(change.out)
	p.text("bench")
	p.uint(base)
	p.uint(term)
	return p.out
}

func decodeAnswer(body []byte) (answer, error) {
	u := unpacker{body}
	if _, err := u.array(); err != nil {
		return answer{}, err
	}
	epoch, err := u.uint()
	if err != nil {
		return answer{}, err
	}
	term, err := u.uint()
	return answer{epoch: epoch, term: term}, err
}

// findLeader asks every node which term it leads; only the leader answers that.
func findLeader(addresses []string, cluster string) (*client, error) {
	deadline := time.Now().Add(10 * time.Second)
	for time.Now().Before(deadline) {
		for _, address := range addresses {
			conn, in, err := connect(address, cluster)
			if err != nil {
				continue
			}
			conn.Write(frame(verbSubmit, 1, 0, 0, submitBody(make([]byte, 16), "x", []byte("x"), 0, 0)))
			for {
				reply, err := readEnvelope(in)
				if err != nil || reply.flags&flagError != 0 {
					break
				}
				if reply.verb != verbSubmit {
					continue
				}
				told, err := decodeAnswer(reply.body)
				if err != nil || told.term == 0 {
					break
				}
				found := &client{conn: conn, in: in, out: make(chan []byte, 4096), term: told.term}
				found.epoch.Store(reply.epoch)
				return found, nil
			}
			conn.Close()
		}
		time.Sleep(100 * time.Millisecond)
	}
	return nil, errors.New("no node leads the metadata group")
}

func (c *client) write() {
	out := bufio.NewWriterSize(c.conn, 1<<16)
	for frame := range c.out {
		out.Write(frame)
		for more := true; more; {
			select {
			case next, open := <-c.out:
				if !open {
					out.Flush()
					return
				}
				out.Write(next)
			default:
				more = false
			}
		}
		out.Flush()
	}
}

func (c *client) read() error {
	for {
		reply, err := readEnvelope(c.in)
		if err != nil {
			return err
		}
		if reply.verb != verbSubmit || reply.flags == 0 {
			continue
		}
		if reply.epoch > c.epoch.Load() {
			c.epoch.Store(reply.epoch)
		}
		streams, body := []uint64{reply.stream}, reply.body
		if reply.flags&flagShared != 0 {
			if streams, body, err = decodeShared(reply.body); err != nil {
				return err
			}
		}
		told := answer{failed: true}
		if reply.flags&flagError == 0 {
			if told, err = decodeAnswer(body); err != nil {
				return err
			}
		}
		for _, stream := range streams {
			c.answers[stream-1] <- told
		}
	}
}

func decodeShared(shared []byte) ([]uint64, []byte, error) {
	u := unpacker{shared}
	if _, err := u.array(); err != nil {
		return nil, nil, err
	}
	body, err := u.bytes()
	if err != nil {
		return nil, nil, err
	}
	count, err := u.array()
	if err != nil {
		return nil, nil, err
	}
	streams := make([]uint64, count)
	for at := range streams {
		if streams[at], err = u.uint(); err != nil {
			return nil, nil, err
		}
	}
	return streams, body, nil
}

func (c *client) submit(number int, value []byte, counted, ends time.Time, own *result) {
	name, id := fmt.Sprintf("bench/%d", number), make([]byte, 16)
	rand.Read(id)
	for round := uint64(1); ; round++ {
		sent := time.Now()
		if sent.After(ends) {
			return
		}
		binary.BigEndian.PutUint64(id, round)
		body := submitBody(id, name, value, c.epoch.Load(), c.term)
		c.out <- frame(verbSubmit, uint64(number+1), 0, 0, body)
		told := <-c.answers[number]
		done := time.Now()
		if told.failed || told.epoch == 0 {
			own.Errors++
		} else if sent.After(counted) && done.Before(ends) {
			own.Commits++
			own.LatenciesUs = append(own.LatenciesUs, done.Sub(sent).Microseconds())
		}
	}
}

func main() {
	endpoints := flag.String("endpoints", "127.0.0.1:7000", "comma separated internode addresses")
	cluster := flag.String("cluster", "", "name of the cluster")
	submitters := flag.Int("submitters", 64, "closed loops at once")
	seconds := flag.Float64("seconds", 5, "measured time")
	warm := flag.Float64("warm", 1, "time before it that does not count")
	size := flag.Int("size", 100, "bytes of a value")
	flag.Parse()
	found, err := findLeader(strings.Split(*endpoints, ","), *cluster)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for number := 0; number < *submitters; number++ {
		found.answers = append(found.answers, make(chan answer, 1))
	}
	go found.write()
	go func() {
		fmt.Fprintln(os.Stderr, "the connection ended:", found.read())
		os.Exit(1)
	}()
	value := []byte(strings.Repeat("v", *size))
	counted := time.Now().Add(time.Duration(*warm * float64(time.Second)))
	ends := counted.Add(time.Duration(*seconds * float64(time.Second)))
	results := make([]result, *submitters)
	var all sync.WaitGroup
	for number := range results {
		all.Add(1)
		go func(number int) {
			defer all.Done()
			found.submit(number, value, counted, ends, &results[number])
		}(number)
	}
	all.Wait()
	total := result{Seconds: *seconds}
	for _, one := range results {
		total.Commits += one.Commits
		total.Errors += one.Errors
		total.LatenciesUs = append(total.LatenciesUs, one.LatenciesUs...)
	}
	if err := json.NewEncoder(os.Stdout).Encode(total); err != nil {
		os.Exit(1)
	}
}
