// Follows the changes of a table with the unmodified library scylla-cdc-go, and prints each as a line of JSON:
// microseconds of its write time, operation, and the columns k and v. Ends when its input does.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/gocql/gocql"
	scyllacdc "github.com/scylladb/scylla-cdc-go"
)

type line struct {
	AtUs      int64  `json:"at_us"`
	Operation string `json:"operation"`
	Stream    string `json:"stream"`
	K         *int   `json:"k"`
	V         *int   `json:"v"`
}

func number(row *scyllacdc.ChangeRow, column string) *int {
	value, _ := row.GetValue(column)
	found, _ := value.(*int)
	return found
}

func main() {
	hosts := flag.String("hosts", "127.0.0.1", "addresses, with commas between them")
	port := flag.Int("port", 9042, "of the CQL door")
	table := flag.String("table", "", "keyspace.table")
	flag.Parse()
	cluster := gocql.NewCluster(strings.Split(*hosts, ",")...)
	cluster.Port = *port
	cluster.Timeout = 10 * time.Second
	session, err := cluster.CreateSession()
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()
	var lock sync.Mutex
	told := func(ctx context.Context, table string, change scyllacdc.Change) error {
		lock.Lock()
		defer lock.Unlock()
		for _, row := range change.Delta {
			text, err := json.Marshal(line{
				change.GetCassandraTimestamp(), row.GetOperation().String(), change.StreamID.String(),
				number(row, "k"), number(row, "v"),
			})
			if err != nil {
				return err
			}
			fmt.Println(string(text))
		}
		return nil
	}
	reader, err := scyllacdc.NewReader(context.Background(), &scyllacdc.ReaderConfig{
		Session:               session,
		TableNames:            []string{*table},
		ChangeConsumerFactory: scyllacdc.MakeChangeConsumerFactoryFromFunc(told),
		Logger:                log.New(os.Stderr, "", log.Ltime),
		Advanced: scyllacdc.AdvancedReaderConfig{
			ConfidenceWindowSize:     6 * time.Second,
			PostNonEmptyQueryDelay:   time.Second,
			PostEmptyQueryDelay:      time.Second,
			QueryTimeWindowSize:      30 * time.Second,
			ChangeAgeLimit:           2 * time.Minute,
			PostGenerationFetchDelay: 3 * time.Second,
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		reader.Stop()
	}()
	if err := reader.Run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
