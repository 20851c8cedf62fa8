module lockstep_client

go 1.21
