package natsbus

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sheaf-rl/sheaf/pkg/bus"
)

// Error codes of the JetStream API that nats.go has no names for.
const (
	codeWrongLast   = 10071 // the expected sequence is not the last
	codeStoreFailed = 10077 // no room: bytes, messages, or one message too large
	codeInFlight    = 10164 // another write under the same expectation is under way (replicas 3)
)

// classify gives a JetStream error its name in pkg/bus.
func classify(op string, err error) error {
	var api *jetstream.APIError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &api) && api.ErrorCode == codeWrongLast:
		return fmt.Errorf("%s: %w: %w", op, bus.ErrFenced, err)
	case errors.As(err, &api) && api.ErrorCode == codeStoreFailed:
		return fmt.Errorf("%s: %w: %w", op, bus.ErrFull, err)
	case errors.As(err, &api) && api.ErrorCode == codeInFlight,
		errors.Is(err, jetstream.ErrNoStreamResponse),
		errors.Is(err, nats.ErrNoResponders),
		errors.Is(err, nats.ErrTimeout),
		errors.Is(err, nats.ErrConnectionClosed),
		errors.Is(err, nats.ErrConnectionReconnecting),
		errors.Is(err, nats.ErrReconnectBufExceeded),
		errors.Is(err, nats.ErrDisconnected),
		errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, errDisconnected):
		return fmt.Errorf("%s: %w: %w", op, bus.ErrUnavailable, err)
	default:
		return fmt.Errorf("%s: %w", op, err)
	}
}

// passing says that the same write may succeed a little later.
func passing(err error) bool {
	return errors.Is(err, bus.ErrUnavailable) || errors.Is(err, bus.ErrFull)
}
