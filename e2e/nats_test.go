//go:build e2e

package e2e_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/sheaf-rl/sheaf/pkg/bus/natsbus"
)

// natsEnv makes the test binary a NATS server that can be killed: it names the
// store's folder, and natsListen the address.
const (
	natsEnv    = "SHEAF_E2E_NATS"
	natsListen = "SHEAF_E2E_NATS_LISTEN"
)

// serveNATS serves until the process is killed.
func serveNATS() {
	srv, err := natsbus.StartServer(natsbus.ServerConfig{Dir: os.Getenv(natsEnv), Listen: os.Getenv(natsListen)})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("serving", srv.URL())
	select {}
}

// startNATS starts a server of its own process on a store.
func startNATS(t *testing.T, dir, listen string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := startWith(t, []string{natsEnv + "=" + dir, natsListen + "=" + listen}, self)
	p.until("serving", 30*time.Second)
	return p
}
