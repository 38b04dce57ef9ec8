package config

import (
	"errors"
	"os"
	"reflect"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Options change how a file is loaded.
type Options struct {
	// Set holds overrides "key=value", such as "rollout.batch_size=4" or
	// "engines.0.sim.count=2". Values are YAML. Later ones win.
	Set []string
	// LookupEnv finds the value of ${NAME}; nil is os.LookupEnv.
	LookupEnv func(name string) (value string, ok bool)
	// SkipFiles leaves out the check that the files and folders named exist.
	SkipFiles bool
}

// Load reads and validates the config at path. Its error lists every problem,
// each a [*Problem], one a line.
func Load(path string, opt Options) (*Config, error) {
	r := &report{file: path, places: map[string]place{}}
	text, err := os.ReadFile(path)
	if err != nil {
		cause := err
		if pathErr := (*os.PathError)(nil); errors.As(err, &pathErr) {
			cause = pathErr.Err
		}
		r.problems = append(r.problems, &Problem{File: path, Text: "cannot read the config: " + cause.Error()})
		return nil, r.err()
	}
	return load(string(text), r, opt)
}

func load(text string, r *report, opt Options) (*Config, error) {
	lookup := opt.LookupEnv
	if lookup == nil {
		lookup = os.LookupEnv
	}
	cfg := &Config{}
	defaults(cfg)
	d := &decoder{report: r, file: r.file, lookup: lookup}

	if strings.ContainsAny(text, varOpen+varClose) {
		r.problem("", "holds the characters U+E000 or U+E001, which are reserved; remove them")
		return nil, r.err()
	}
	root, ok := d.parse(text)
	if !ok {
		// Every key would count as missing.
		return nil, r.err()
	}
	if root != nil {
		d.value("", 1, root, reflect.ValueOf(cfg).Elem())
	}
	for _, override := range opt.Set {
		d.override(override, reflect.ValueOf(cfg).Elem())
	}
	cfg.derive(r.given)
	r.undecoded = r.keys()
	cfg.validate(r)
	cfg.refuseUnavailable(r)
	if !opt.SkipFiles {
		cfg.checkFiles(r)
	}
	if err := r.err(); err != nil {
		return nil, err
	}
	for _, w := range r.warnings {
		cfg.warnings = append(cfg.warnings, w.Error())
	}
	return cfg, nil
}

// parse returns the root node, nil for an empty document.
func (d *decoder) parse(text string) (ast.Node, bool) {
	file, err := parser.ParseBytes([]byte(conceal(text)), 0, parser.AllowDuplicateMapKey())
	if err != nil {
		p := &Problem{File: d.file, Key: d.root, Text: "is not valid YAML: " + err.Error()}
		if syntax := (*yaml.SyntaxError)(nil); errors.As(err, &syntax) {
			// The full text would quote the lines around, secrets included.
			p.Text = "is not valid YAML: " + reveal(syntax.Message)
			if !d.isOverride {
				p.Line = syntax.Token.Position.Line
			}
		}
		if d.isOverride {
			p.Text += `; a value with one of :[]{}#,& may need quotes, as in --set 'nats.listen="[::1]:4222"'`
		}
		d.problems = append(d.problems, p)
		return nil, false
	}
	if len(file.Docs) > 1 {
		d.problemHere(1, d.root, "holds %d YAML documents; keep one", len(file.Docs))
		return nil, false
	}
	if len(file.Docs) == 0 {
		return nil, true
	}
	return file.Docs[0].Body, true
}

// override applies one "key=value".
func (d *decoder) override(text string, root reflect.Value) {
	key, value, ok := strings.Cut(text, "=")
	d = &decoder{report: d.report, file: "--set", lookup: d.lookup, isOverride: true, root: key}
	// The value stays out of the message: it may be a secret.
	if !ok || key == "" {
		d.problems = append(d.problems, &Problem{File: "--set", Text: "must be key=value, for example rollout.batch_size=4"})
		return
	}
	node, ok := d.parse(value)
	if !ok {
		return
	}
	if node == nil {
		node = ast.String(token.New("", "", nil))
	}
	d.descend("", strings.Split(key, "."), node, root)
}

// descend walks from into along path and decodes the node where it ends.
func (d *decoder) descend(key string, path []string, node ast.Node, into reflect.Value) {
	if len(path) == 0 {
		d.value(key, 0, node, into)
		return
	}
	name := path[0]
	at := join(key, name)
	switch into.Kind() {
	case reflect.Pointer:
		if into.IsNil() {
			into.Set(reflect.New(into.Type().Elem()))
			defaults(into.Interface())
		}
		d.descend(key, path, node, into.Elem())
	case reflect.Struct:
		if field, ok := fieldByName(into, name); ok {
			d.descend(at, path[1:], node, field)
			return
		}
		d.unknown(at, name, into)
	case reflect.Slice:
		i, err := strconv.Atoi(name)
		if err != nil || i < 0 || i >= into.Len() {
			d.problemHere(0, at, "no such entry: %s has %d, numbered from 0", key, into.Len())
			return
		}
		d.descend(at, path[1:], node, into.Index(i))
	case reflect.Map:
		if into.IsNil() {
			into.Set(reflect.MakeMap(into.Type()))
		}
		elem := reflect.New(into.Type().Elem()).Elem()
		d.descend(at, path[1:], node, elem)
		into.SetMapIndex(reflect.ValueOf(name), elem)
	default:
		d.problemHere(0, at, "%s is a single value and has no keys below it", key)
	}
}
