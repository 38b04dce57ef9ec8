module github.com/sheaf-rl/sheaf

go 1.26.0

require (
	github.com/goccy/go-yaml v1.19.2
	github.com/hashicorp/go-multierror v1.1.1
	go.uber.org/goleak v1.3.0
	pgregory.net/rapid v1.3.0
)

require github.com/hashicorp/errwrap v1.0.0 // indirect
