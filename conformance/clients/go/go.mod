module check

go 1.26.8

require (
	github.com/apache/cassandra-gocql-driver/v2 v2.1.2 // indirect
	gopkg.in/inf.v0 v0.9.1 // indirect
)
