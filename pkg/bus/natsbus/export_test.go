package natsbus

import "github.com/nats-io/nats-server/v2/server"

// NATS is the server itself, for tests that do what no user of it can.
func NATS(s *Server) *server.Server { return s.ns }
