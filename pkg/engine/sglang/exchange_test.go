package sglang

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sheaf-rl/sheaf/pkg/engine"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// TestBrokenExchanges has engines that do not even finish a reply.
func TestBrokenExchanges(t *testing.T) {
	hijack := func(do func(net.Conn)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/generate" {
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				panic(err)
			}
			defer conn.Close()
			do(conn)
		}
	}
	write := func(text string) func(net.Conn) {
		return func(conn net.Conn) { _, _ = io.WriteString(conn, text) }
	}
	for _, tc := range []struct {
		name    string
		handler http.HandlerFunc
		limit   int64
		reason  engine.Reason
	}{
		{name: "reset before the reply", handler: hijack(func(conn net.Conn) { _ = conn.(*net.TCPConn).SetLinger(0) }), reason: engine.Reset},
		{name: "closed before the reply", handler: hijack(func(net.Conn) {}), reason: engine.Reset},
		{name: "not HTTP", handler: hijack(write("hello there\r\n\r\n")), reason: engine.BadReply},
		{name: "endless header", handler: hijack(write("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 1<<18) + "\r\n\r\n")), reason: engine.BadReply},
		{name: "closed within the reply", handler: hijack(write("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"output_ids\":[1,")), reason: engine.Reset},
		{name: "closed within a chunk", handler: hijack(write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n20\r\n{\"out")), reason: engine.Reset},
		{name: "bad chunk", handler: hijack(write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{\"out")), reason: engine.BadReply},
		{name: "30: a huge reply", limit: 1 << 20, handler: func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, `{"text":"`+strings.Repeat("x", 2<<20)+`"}`)
		}, reason: engine.TooLarge},
		{name: "30: an endless list", limit: 1 << 20, handler: func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, `{"output_ids":[`+strings.Repeat("1,", 1<<20))
		}, reason: engine.TooLarge},
		{name: "30: an endless entry", handler: func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, `{"meta_info":{"output_token_logprobs":[[-1,1,"`+strings.Repeat("x", 3<<20)+`"]]}}`)
		}, reason: engine.BadReply},
		{name: "30: endless meta", handler: func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, `{"meta_info":{"weight_version":"`+strings.Repeat("x", 3<<20)+`"}}`)
		}, reason: engine.BadReply},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := start(t, tc.handler, func(cfg *Config) { cfg.MaxReply = tc.limit })
			g, err := c.Generate(t.Context(), testRequest())
			if got := engine.ReasonOf(err); got != tc.reason {
				t.Errorf("reason %q, want %q: %v", got, tc.reason, err)
			}
			if g.Fate != rollout.FateFailed {
				t.Errorf("fate %q", g.Fate)
			}
		})
	}

	t.Run("unreachable", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		c, err := New(Config{URL: "http://" + l.Addr().String()})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Generate(t.Context(), testRequest()); engine.ReasonOf(err) != engine.Unreachable {
			t.Errorf("%v", err)
		}
	})
}

// hanging is an engine that never answers /generate, as one that is paused
// (hazard 14), and tells of aborts.
func hanging(reached chan<- string, aborted chan<- string, release <-chan struct{}) http.Handler {
	mux := http.NewServeMux()
	id := func(r *http.Request) string {
		var in struct {
			ID string `json:"rid"`
		}
		_ = json.NewDecoder(r.Body).Decode(&in)
		return in.ID
	}
	mux.HandleFunc("/generate", func(w http.ResponseWriter, r *http.Request) {
		reached <- id(r)
		<-release
	})
	mux.HandleFunc("/abort_request", func(w http.ResponseWriter, r *http.Request) { aborted <- id(r) })
	return mux
}

func TestHazard14HangEndsWithTheCallAndAborts(t *testing.T) {
	for _, tc := range []struct {
		name   string
		end    func(context.Context) (context.Context, context.CancelFunc)
		cancel bool
		reason engine.Reason
	}{
		{name: "deadline", reason: engine.Timeout, end: func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 100*time.Millisecond)
		}},
		{name: "canceled", reason: engine.Canceled, cancel: true, end: context.WithCancel},
	} {
		t.Run(tc.name, func(t *testing.T) {
			reached, aborted, release := make(chan string, 1), make(chan string, 1), make(chan struct{})
			c := start(t, hanging(reached, aborted, release))
			defer close(release)
			ctx, cancel := tc.end(t.Context())
			defer cancel()
			if tc.cancel {
				go func() { <-reached; cancel() }()
			}
			req := testRequest()
			g, err := c.Generate(ctx, req)
			if got := engine.ReasonOf(err); got != tc.reason {
				t.Fatalf("reason %q, want %q: %v", got, tc.reason, err)
			}
			if got := <-aborted; got != req.ID || g.ID != req.ID {
				t.Errorf("aborted %q, record %q, sent %q", got, g.ID, req.ID)
			}
		})
	}
}

// TestHazard16 closes a kept connection just as the second request comes in on
// it, as a server does that thinks it idle.
func TestHazard16StaleConnectionIsSentAgainUnderANewID(t *testing.T) {
	t.Run("idle long enough", func(t *testing.T) { testStale(t, 0, true) })
	t.Run("just used", func(t *testing.T) { testStale(t, time.Hour, false) })
}

func testStale(t *testing.T, staleAfter time.Duration, again bool) {
	var calls atomic.Int32
	var mu sync.Mutex
	var seen, aborted []string
	mux := http.NewServeMux()
	mux.HandleFunc("/abort_request", func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			ID string `json:"rid"`
		}
		_ = json.NewDecoder(r.Body).Decode(&in)
		mu.Lock()
		defer mu.Unlock()
		aborted = append(aborted, in.ID)
	})
	mux.HandleFunc("/generate", func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			ID string `json:"rid"`
		}
		_ = json.NewDecoder(r.Body).Decode(&in)
		mu.Lock()
		seen = append(seen, in.ID)
		mu.Unlock()
		if calls.Add(1) == 2 {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				conn.Close()
			}
			return
		}
		_, _ = fmt.Fprintf(w, `{"output_ids":[],"meta_info":{"id":%q,"finish_reason":{"type":"length"}}}`, in.ID)
	})
	c := start(t, mux)
	c.staleAfter = staleAfter
	if _, err := c.Generate(t.Context(), testRequest()); err != nil {
		t.Fatal(err)
	}
	req := testRequest()
	g, err := c.Generate(t.Context(), req)
	if !again {
		if engine.ReasonOf(err) != engine.Reset || calls.Load() != 2 {
			t.Errorf("after %d calls: %v", calls.Load(), err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	c.aborts.Wait()
	mu.Lock()
	defer mu.Unlock()
	if len(seen) != 3 || seen[1] != req.ID || seen[2] == req.ID || g.ID != seen[2] {
		t.Errorf("seen %q, first id %q, record %q", seen, req.ID, g.ID)
	}
	if len(aborted) != 1 || aborted[0] != req.ID {
		t.Errorf("aborted %q, want the first id %q", aborted, req.ID)
	}
	if idleTimeout >= 5*time.Second {
		t.Errorf("idle connections are kept %v, the server closes them after 5s", idleTimeout)
	}
}

func TestConcurrentCallsKeepTheirReplies(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/generate", func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			ID  string  `json:"rid"`
			IDs []int32 `json:"input_ids"`
		}
		_ = json.NewDecoder(r.Body).Decode(&in)
		n := in.IDs[0]
		var ids, probs []string
		for i := range n {
			ids = append(ids, fmt.Sprint(i+n))
			probs = append(probs, fmt.Sprintf("[-%d,%d,null]", n, i+n))
		}
		_, _ = fmt.Fprintf(w, `{"output_ids":[%s],"meta_info":{"id":%q,"finish_reason":{"type":"length"},"completion_tokens":%d,"output_token_logprobs":[%s]}}`,
			strings.Join(ids, ","), in.ID, n, strings.Join(probs, ","))
	})
	c := start(t, mux)
	var group sync.WaitGroup
	for n := int32(1); n <= 64; n++ {
		group.Go(func() {
			req := testRequest()
			req.PromptIDs = []int32{n * 50}
			req.Sampling.MaxNewTokens = int(n) * 50
			g, err := c.Generate(t.Context(), req)
			if err != nil {
				t.Errorf("%v", err)
				return
			}
			for i, id := range g.OutputIDs {
				if id != int32(i)+n*50 || g.LogProbs[i] != float32(-n*50) {
					t.Errorf("call %d: token %d is %d with %v", n, i, id, g.LogProbs[i])
					return
				}
			}
			if len(g.OutputIDs) != int(n)*50 {
				t.Errorf("call %d: %d tokens", n, len(g.OutputIDs))
			}
		})
	}
	group.Wait()
}
