package sglang

import (
	"errors"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sheaf-rl/sheaf/pkg/engine"
)

func TestAdmin(t *testing.T) {
	serve := func(paths map[string]string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			text, ok := paths[r.URL.Path]
			if !ok {
				http.NotFound(w, r)
				return
			}
			if strings.HasPrefix(text, "503") {
				w.WriteHeader(503)
				return
			}
			_, _ = io.WriteString(w, text)
		})
	}
	on, off := true, false
	for _, tc := range []struct {
		name   string
		paths  map[string]string
		want   engine.Info
		reason engine.Reason
	}{
		{name: "new", paths: map[string]string{
			"/model_info":  `{"model_path":"m","weight_version":"4","is_generation":true}`,
			"/server_info": `{"version":"0.5.16","speculative_algorithm":"EAGLE","enable_deterministic_inference":true,"context_length":4096,"skip_tokenizer_init":true,"internal_states":[{}]}`,
		}, want: engine.Info{Version: "0.5.16", Model: "m", WeightVersion: str("4"), Deterministic: true, Speculative: &on, ContextLen: 4096, NoTokenizer: true}},
		{name: "old", paths: map[string]string{
			"/get_model_info":  `{"model_path":"m"}`,
			"/get_server_info": `{"version":"0.5.4","speculative_algorithm":null,"context_length":null}`,
		}, want: engine.Info{Version: "0.5.4", Model: "m", Speculative: &off}},
		{name: "says little", paths: map[string]string{"/model_info": `{}`, "/server_info": `{}`}},
		{name: "says nothing", paths: map[string]string{"/model_info": `{}`}, reason: engine.Rejected},
		{name: "garbage", paths: map[string]string{"/model_info": `{}`, "/server_info": `[]`}, reason: engine.BadReply},
		{name: "not ready", paths: map[string]string{"/model_info": "503"}, reason: engine.Overloaded},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := start(t, serve(tc.paths)).Info(t.Context())
			if engine.ReasonOf(err) != tc.reason {
				t.Fatalf("reason of %v, want %q", err, tc.reason)
			}
			if !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}

	t.Run("health", func(t *testing.T) {
		if err := start(t, serve(map[string]string{"/health": ""})).Health(t.Context()); err != nil {
			t.Error(err)
		}
		if err := start(t, serve(map[string]string{"/health": "503"})).Health(t.Context()); engine.ReasonOf(err) != engine.Overloaded {
			t.Errorf("%v", err)
		}
	})
	t.Run("11: abort needs an id", func(t *testing.T) {
		if err := start(t, serve(map[string]string{"/abort_request": ""})).Abort(t.Context(), ""); engine.ReasonOf(err) != engine.Rejected {
			t.Errorf("%v", err)
		}
	})
	t.Run("tokenize", func(t *testing.T) {
		got, err := start(t, serve(map[string]string{"/v1/tokenize": `{"tokens":[1,2],"count":2}`})).Tokenize(t.Context(), "x")
		if err != nil || !reflect.DeepEqual(got, []int32{1, 2}) {
			t.Errorf("%v, %v", got, err)
		}
		if _, err := start(t, serve(nil)).Tokenize(t.Context(), "x"); !errors.Is(err, engine.ErrNoTokenizer) {
			t.Errorf("%v", err)
		}
		if _, err := start(t, serve(map[string]string{"/v1/tokenize": `{}`})).Tokenize(t.Context(), "x"); engine.ReasonOf(err) != engine.BadReply {
			t.Errorf("%v", err)
		}
	})
	t.Run("13: a control call has a deadline of its own", func(t *testing.T) {
		release := make(chan struct{})
		c := start(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }), func(cfg *Config) { cfg.ControlTimeout = 50 * time.Millisecond })
		defer close(release)
		if err := c.Health(t.Context()); engine.ReasonOf(err) != engine.Timeout {
			t.Errorf("%v", err)
		}
	})
}
