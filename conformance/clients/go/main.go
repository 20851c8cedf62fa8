// The Go driver.
package main

import (
	"fmt"
	"log"
	"os"
	"reflect"
	"runtime/debug"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
)

const (
	rows     = 500
	pageSize = 30
	module   = "github.com/apache/cassandra-gocql-driver/v2"
)

type address struct {
	Street string `cql:"street"`
	Zip    int    `cql:"zip"`
}

func held(name string) { fmt.Println("check", name) }

func must(problem error) {
	if problem != nil {
		log.Fatal(problem)
	}
}

func require(holds bool, what ...any) {
	if !holds {
		log.Fatal(what...)
	}
}

func version() string {
	build, _ := debug.ReadBuildInfo()
	for _, dependency := range build.Deps {
		if dependency.Path == module {
			return dependency.Version
		}
	}
	return "unknown"
}

func main() {
	fmt.Println("version gocql", version())
	cluster := gocql.NewCluster(os.Args[1:]...)
	cluster.Consistency = gocql.Quorum
	session, problem := cluster.CreateSession()
	must(problem)
	defer session.Close()
	for _, text := range []string{
		"CREATE KEYSPACE golang WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 3}",
		"CREATE TYPE golang.address (street text, zip int)",
		"CREATE TABLE golang.t (k int, c int, v text, l list<int>, m map<text, int>, s set<text>, " +
			"u frozen<address>, PRIMARY KEY (k, c))",
	} {
		must(session.Query(text).Exec())
	}
	held("connect")
	const insert = "INSERT INTO golang.t (k, c, v) VALUES (?, ?, ?)"
	for c := 0; c < rows; c++ {
		must(session.Query(insert, 1, c, fmt.Sprint("v", c)).Exec())
	}
	held("prepare")
	found, at := 0, 0
	pages := session.Query("SELECT c FROM golang.t WHERE k = 1").PageSize(pageSize).Iter()
	for pages.Scan(&at) {
		require(at == found, "row ", at, " in place ", found)
		found++
	}
	must(pages.Close())
	require(found == rows, found)
	held("page")
	batch := session.Batch(gocql.LoggedBatch)
	for c := 0; c < 3; c++ {
		batch.Query(insert, 2, c, "b")
	}
	must(batch.Exec())
	held("batch")
	list, mapping, set, given := []int{3, 4}, map[string]int{"b": 2}, []string{"z"}, address{"S", 9}
	must(session.Query("INSERT INTO golang.t (k, c, l, m, s, u) VALUES (?, ?, ?, ?, ?, ?)",
		4, 0, list, mapping, set, given).Exec())
	var readList, readSet = []int{}, []string{}
	var readMapping map[string]int
	var read address
	must(session.Query("SELECT l, m, s, u FROM golang.t WHERE k = 4").Scan(&readList, &readMapping, &readSet, &read))
	require(reflect.DeepEqual([]any{list, mapping, set}, []any{readList, readMapping, readSet}), readList, readMapping)
	held("collections")
	require(read == given, read)
	held("user type")
	applied, problem := session.Query("INSERT INTO golang.t (k, c, v) VALUES (9, 0, 'x') IF NOT EXISTS").
		MapScanCAS(map[string]any{})
	must(problem)
	require(applied, "a first conditional write was not applied")
	held("conditional")
	keyspace, problem := session.KeyspaceMetadata("golang")
	must(problem)
	require(len(keyspace.Tables["t"].Columns) == 7, keyspace.Tables["t"].Columns)
	held("schema")
}
