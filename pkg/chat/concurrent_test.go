package chat

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

func TestConcurrentContinue(t *testing.T) {
	f := projectFamily(t, "tiny-glm", "glm47")
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := range 30 {
				// Options that differ, so that the remembered heads push each other out.
				opt := RenderOptions{AddGenerationPrompt: true, Tools: []json.RawMessage{
					json.RawMessage(fmt.Sprintf(`{"function":{"name":"f%d"}}`, (worker+i)%20))}}
				history := []rollout.Message{rollout.NewMessage("user", "hi"), rollout.NewMessage("assistant", "yo")}
				tokens, err := f.EncodeChat(history, RenderOptions{Tools: opt.Tools})
				if err != nil {
					t.Error(err)
					return
				}
				appended := []rollout.Message{rollout.NewMessage("user", fmt.Sprint(worker, i))}
				got, err := f.Continue(tokens, history, appended, opt)
				if err != nil {
					t.Error(err)
					return
				}
				want, err := f.EncodeChat(slices.Concat(history, appended), opt)
				if err != nil || !slices.Equal(got, want) {
					t.Errorf("got %v, want %v, %v", got, want, err)
				}
			}
		})
	}
	wg.Wait()
}
