package chat

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sheaf-rl/sheaf/pkg/chat/internal/vectors"
	"github.com/sheaf-rl/sheaf/pkg/rollout"
)

// target is a model and a family whose continued conversations must have the
// tokens of the whole.
type target struct {
	name   string
	family *Family
	roles  []string // that must be appendable
}

func projectFamily(t testing.TB, model, family string) *Family {
	t.Helper()
	m, err := Load(filepath.Join("..", "..", "configs", "models", model))
	if err != nil {
		t.Fatal(err)
	}
	f, err := m.Family(family)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestAppendedTokensAreThoseOfTheWhole(t *testing.T) {
	checkTargets(t, []target{
		{"project model tiny, our qwen3 template", projectFamily(t, "tiny", "qwen3"), anyRole},
		{"project model tiny, our qwen35 template", projectFamily(t, "tiny", "qwen35"), anyRole},
		{"project model tiny-glm, its own template", projectFamily(t, "tiny-glm", "glm47"), anyRole},
	})
}

func TestVectorsAppendedTokensAreThoseOfTheWhole(t *testing.T) {
	root := filepath.Join("..", "..")
	templates, models := filepath.Join(vectors.Dir(t, root), "chat", "templates"), vectors.Models(t, root)
	read := func(path ...string) []byte {
		data, err := os.ReadFile(filepath.Join(path...))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	bind := func(tokenizer []byte, template, family string) *Family {
		m, err := newModel(tokenizer, []byte(`{"bos_token":"<BOS>","eos_token":"<|im_end|>"}`), read(templates, template))
		if err != nil {
			t.Fatal(err)
		}
		f, err := m.Family(family)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	qwen := read(models, "qwen3", "tokenizer.json")
	// GLM's tokenizer is not at hand; the project's has its special tokens and its split pattern.
	glm := read(root, "configs", "models", "tiny-glm", "tokenizer.json")
	checkTargets(t, []target{
		{"glm-5.2", bind(glm, "glm-5.2.jinja", "glm47"), anyRole},
		{"qwen3-vl", bind(qwen, "qwen3-vl.jinja", "default"), []string{"tool", "user", "assistant"}},
		{"our qwen3 template, Qwen3 tokenizer", bind(qwen, "qwen3.jinja", "qwen3"), anyRole},
		{"our qwen35 template, Qwen3 tokenizer", bind(qwen, "qwen3.5.jinja", "qwen35"), anyRole},
	})
}

func checkTargets(t *testing.T, targets []target) {
	var names []string
	for _, target := range targets {
		names = append(names, target.name)
		t.Run(target.name, func(t *testing.T) {
			for _, role := range target.roles {
				if !target.family.MayAppend(role) {
					t.Errorf("%s cannot be appended: %v", role, target.family.refused(role))
				}
			}
			for seed := range uint64(400) {
				if !checkConversation(t, target.family, randomTalk{rand.New(rand.NewPCG(seed, 7))}) {
					t.Fatalf("seed %d", seed)
				}
			}
		})
	}
	t.Logf("covers: %s", strings.Join(names, "; "))
}

// checkConversation plays a random conversation: after every reply the tokens so
// far are continued, and must be the tokens of the whole rendered.
func checkConversation(t *testing.T, f *Family, g randomTalk) bool {
	opt := g.options()
	whole := opt
	whole.AddGenerationPrompt = false
	var history []rollout.Message
	if g.maybe(0.5) {
		history = append(history, toMessage(t, g.message("system")))
	}
	history = append(history, toMessage(t, g.message("user")))
	for range 1 + g.r.IntN(4) {
		calls := g.maybe(0.5)
		history = append(history, toMessage(t, g.reply(calls)))
		tokens, err := f.EncodeChat(history, whole)
		if err != nil {
			t.Error(err)
			return false
		}
		tokens = f.asSampled(tokens, g)
		if mismatches, err := f.Compare(history, tokens, opt); err != nil || len(mismatches) > 0 {
			t.Errorf("a conversation compared with itself: %v, %v", mismatches, err)
			return false
		}

		appended := randomAppend(t, f, g, calls)
		got, err := f.Continue(tokens, history, appended, opt)
		if err != nil {
			t.Error(err)
			return false
		}
		history = append(history, appended...)
		want, err := f.EncodeChat(history, opt)
		if err != nil {
			t.Error(err)
			return false
		}
		if !slices.Equal(got, want) {
			t.Errorf("continued: %q\nwhole:     %q", f.text(got), f.text(want))
			return false
		}
		if kept := len(tokens) - f.MaxTrim(); !slices.Equal(got[:kept], tokens[:kept]) {
			t.Error("the tokens so far are not kept")
			return false
		}
	}
	return true
}

// asSampled is how the engine leaves rendered tokens: without what the template
// writes behind the end of a turn, or with the opener of the next message.
func (f *Family) asSampled(tokens []int32, g randomTalk) []int32 {
	if n := len(f.afterTurn); n > 0 && slices.Equal(tokens[len(tokens)-n:], f.afterTurn) {
		return tokens[:len(tokens)-n]
	}
	if len(f.openers) > 0 && g.maybe(0.8) {
		return append(slices.Clip(tokens), f.openers[g.r.IntN(len(f.openers))])
	}
	return tokens
}

func randomAppend(t *testing.T, f *Family, g randomTalk, calls bool) []rollout.Message {
	var roles []string
	for _, role := range anyRole {
		if f.MayAppend(role) && role != "tool" {
			roles = append(roles, role)
		}
	}
	var appended []rollout.Message
	if calls {
		for range 1 + g.r.IntN(3) {
			appended = append(appended, toMessage(t, g.message("tool")))
		}
	}
	for len(appended) == 0 || g.maybe(0.2) {
		role := roles[g.r.IntN(len(roles))]
		if role == "assistant" {
			appended = append(appended, toMessage(t, g.reply(false)))
		} else {
			appended = append(appended, toMessage(t, g.message(role)))
		}
	}
	return appended
}

func TestFamilyRefusals(t *testing.T) {
	f := projectFamily(t, "tiny", "qwen3")
	user := rollout.NewMessage("user", "hi")
	reply := rollout.NewMessage("assistant", "yo")
	tokens, err := f.EncodeChat([]rollout.Message{user, reply}, RenderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, appended := range map[string][]rollout.Message{
		"nothing to append": nil,
		"an unknown role":   {rollout.NewMessage("critic", "no")},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := f.Continue(tokens, []rollout.Message{user, reply}, appended, RenderOptions{}); !errors.Is(err, ErrRole) {
				t.Errorf("error %v, want ErrRole", err)
			}
		})
	}
	t.Run("a family that does not exist", func(t *testing.T) {
		if _, err := f.model.Family("gpt9"); !errors.Is(err, ErrFamily) {
			t.Errorf("error %v, want ErrFamily", err)
		}
	})
	t.Run("a family whose tokens the model lacks", func(t *testing.T) {
		if _, err := f.model.Family("glm47"); err == nil || !strings.Contains(err.Error(), "<|user|>") {
			t.Errorf("error %v, want one that names the token", err)
		}
	})
}
