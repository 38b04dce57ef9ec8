// Package jinja renders chat templates byte for byte as Python's jinja2 does in
// the environment Hugging Face transformers sets up for them: a sandbox with
// trim_blocks, lstrip_blocks, loop controls, the generation tag, tojson by
// json.dumps, raise_exception and strftime_now.
//
// It is the part of Jinja that chat templates use. Tags that load other templates
// are refused when a template is parsed. What Python raises is an error here, with
// the line of the template. A template can neither reach outside its values nor
// run without end: steps, output and nesting are limited.
//
// Values keep the order of JSON keys, integers are exact, and floats, None and
// nested values print as in Python.
//
//	t, err := jinja.Parse(source)
//	text, err := t.Render(vars, jinja.Options{})
package jinja

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// Error is a fault of a template at a line of it.
type Error struct {
	Line int
	Msg  string
	err  error
}

func (e *Error) Error() string {
	msg := e.Msg
	if e.err != nil {
		msg = e.err.Error()
	}
	return fmt.Sprintf("chat template line %d: %s", e.Line, msg)
}

// Unwrap returns the cause, if the fault has one.
func (e *Error) Unwrap() error { return e.err }

// ErrLimit reports a template that wanted too many steps or too much memory.
var ErrLimit = errors.New("template limit exceeded")

// ErrRaised reports a template that called raise_exception.
var ErrRaised = errors.New("the template refused its input")

// Template is a parsed template. It is safe for concurrent use.
type Template struct {
	body  []stmt
	scope *scope
	// used holds the buffers of renderings that are over.
	used sync.Pool
}

// buffers is the memory that one rendering after another works in.
type buffers struct {
	out     []byte
	scratch []Value
}

// maxKept is the size up to which a buffer is worth keeping.
const maxKept = 1 << 20

// Options bound and complete a rendering. Zero values take the defaults.
type Options struct {
	// Now is the time that strftime_now prints; the default is the current time.
	Now time.Time
	// MaxSteps bounds the work: evaluations, and in each of them the values, bytes
	// and digits it goes over. The default is 20 million.
	MaxSteps int
	// MaxOutput bounds the bytes of the text and of any string on the way, 64 MiB
	// by default.
	MaxOutput int
}

// Parse parses a template.
func Parse(source string) (*Template, error) {
	tokens, err := lex(source)
	if err != nil {
		return nil, err
	}
	p := &parser{tokens: tokens}
	body, _, err := p.body()
	if err != nil {
		return nil, err
	}
	scope, err := resolveTemplate(body)
	if err != nil {
		return nil, err
	}
	return &Template{body: body, scope: scope}, nil
}

// Render renders the template with the variables of vars.
func (t *Template) Render(vars *Dict, opt Options) (string, error) {
	rt := &runtime{vars: vars, now: opt.Now, steps: opt.MaxSteps, maxOutput: opt.MaxOutput}
	if rt.steps <= 0 {
		rt.steps = 20e6
	}
	if rt.maxOutput <= 0 {
		rt.maxOutput = 64 << 20
	}
	b, ok := t.used.Get().(*buffers)
	if !ok {
		b = new(buffers)
	}
	rt.out, rt.scratch = b.out[:0], b.scratch[:0]
	_, err := execAll(rt.enter(t.scope, nil), t.body)
	err = rt.spent(err)
	text := ""
	if err == nil {
		text = string(rt.out)
	}
	if cap(rt.out) <= maxKept {
		clear(rt.scratch[:cap(rt.scratch)]) // values must not outlive their rendering
		b.out, b.scratch = rt.out, rt.scratch
		t.used.Put(b)
	}
	return text, err
}
