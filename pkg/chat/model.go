// Package chat is the text side of a model: its tokenizer, its chat template, and
// the rules by which a token sequence can be continued without rendering its
// history again.
//
// Everything here stands in for a Python process and must agree with it exactly:
// token ids with Hugging Face tokenizers (package bpe), rendered prompts with
// jinja2 as transformers sets it up (package jinja). What a model folder asks for
// and is not implemented is refused when the folder is loaded.
//
//	model, err := chat.Load("configs/models/tiny")
//	ids, err := model.EncodeChat(messages, chat.RenderOptions{AddGenerationPrompt: true})
//
// A Model and everything it hands out but decoders is safe for concurrent use.
package chat

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/sheaf-rl/sheaf/pkg/chat/bpe"
	"github.com/sheaf-rl/sheaf/pkg/chat/jinja"
)

// The files of a model folder that Load reads.
const (
	tokenizerFile = "tokenizer.json"
	configFile    = "tokenizer_config.json"
	templateFile  = "chat_template.jinja"
)

// ErrNoTemplate reports a model without a chat template.
var ErrNoTemplate = errors.New("the model has no chat template: put chat_template.jinja into its folder")

// Tokenizer turns text into token ids and back.
type Tokenizer = bpe.Tokenizer

// Decoder decodes a stream of token ids.
type Decoder = bpe.Decoder

// Model is the text side of a Hugging Face model folder.
type Model struct {
	hash      string
	tokenizer *Tokenizer
	templates map[string]*chatTemplate // by name; the usual one is "default"
	special   []specialToken           // bos_token and the like, as the template sees them
}

type specialToken struct {
	name string
	text jinja.Value
}

// Load reads the tokenizer and the chat template of a model folder.
func Load(dir string) (*Model, error) {
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("model folder %s does not exist: set model.path to a folder that holds %s and %s",
			dir, tokenizerFile, configFile)
	}
	tokenizer, err := readModelFile(dir, tokenizerFile)
	if err != nil {
		return nil, err
	}
	config, err := readModelFile(dir, configFile)
	if err != nil {
		return nil, err
	}
	template, err := os.ReadFile(filepath.Join(dir, templateFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("reading the chat template: %w", err)
	}
	m, err := newModel(tokenizer, config, template)
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", dir, err)
	}
	return m, nil
}

func readModelFile(dir, name string) ([]byte, error) {
	data, err := os.ReadFile(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("model folder %s has no %s: copy it there from the model's Hugging Face repository", dir, name)
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s of the model: %w", name, err)
	}
	return data, nil
}

func newModel(tokenizer, config, template []byte) (*Model, error) {
	m := &Model{templates: map[string]*chatTemplate{}}
	h := sha256.New()
	for _, part := range [][]byte{tokenizer, config, template} {
		// The length keeps a byte that moves from one file to the next from going unseen.
		fmt.Fprintf(h, "%d\n", len(part))
		h.Write(part)
	}
	m.hash = hex.EncodeToString(h.Sum(nil))
	var err error
	if m.tokenizer, err = bpe.Load(tokenizer); err != nil {
		return nil, fmt.Errorf("%s: %w", tokenizerFile, err)
	}
	if err := m.readConfig(config); err != nil {
		return nil, fmt.Errorf("%s: %w", configFile, err)
	}
	if template != nil {
		m.templates = map[string]*chatTemplate{}
		if err := m.addTemplate("default", string(template)); err != nil {
			return nil, fmt.Errorf("%s: %w", templateFile, err)
		}
	}
	return m, nil
}

func (m *Model) addTemplate(name, source string) error {
	t, err := parseTemplate(source)
	if err != nil {
		return err
	}
	m.templates[name] = t
	return nil
}

// readConfig takes the special tokens and the chat template of tokenizer_config.json.
func (m *Model) readConfig(data []byte) error {
	var config map[string]json.RawMessage
	if err := json.Unmarshal(data, &config); err != nil {
		return err
	}
	for _, name := range []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"} {
		text, ok, err := tokenText(config[name])
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if ok {
			m.special = append(m.special, specialToken{name, text})
		}
	}
	raw := config["chat_template"]
	if raw == nil || string(raw) == "null" {
		return nil
	}
	var source string
	if json.Unmarshal(raw, &source) == nil {
		return m.addTemplate("default", source)
	}
	var named []struct{ Name, Template string }
	if err := json.Unmarshal(raw, &named); err != nil {
		return fmt.Errorf("chat_template is neither a string nor a list of named templates: %w", err)
	}
	for _, t := range named {
		if err := m.addTemplate(t.Name, t.Template); err != nil {
			return fmt.Errorf("chat_template %s: %w", t.Name, err)
		}
	}
	return nil
}

// tokenText reads a special token, which is a string or an object with content.
func tokenText(raw json.RawMessage) (string, bool, error) {
	if raw == nil || string(raw) == "null" {
		return "", false, nil
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text, true, nil
	}
	var object struct{ Content *string }
	if err := json.Unmarshal(raw, &object); err != nil {
		return "", false, err
	}
	if object.Content == nil {
		return "", false, errors.New("it has no content")
	}
	return *object.Content, true, nil
}

// Hash is the SHA-256 of all files that decide how text becomes tokens. Two
// workers with equal hashes build equal prompts.
func (m *Model) Hash() string { return m.hash }

// Tokenizer returns the model's tokenizer.
func (m *Model) Tokenizer() *Tokenizer { return m.tokenizer }

// SpecialToken returns the text of a token by its role, such as "eos_token".
func (m *Model) SpecialToken(role string) (string, bool) {
	for _, s := range m.special {
		if s.name == role {
			text, ok := s.text.(string)
			return text, ok
		}
	}
	return "", false
}

// EOS returns the id of the token that ends a reply, if the model names one.
func (m *Model) EOS() (int32, bool) {
	text, ok := m.SpecialToken("eos_token")
	if !ok {
		return 0, false
	}
	return m.tokenizer.TokenID(text)
}
