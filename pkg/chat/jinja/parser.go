package jinja

import (
	"fmt"
	"strings"
)

// maxNesting bounds the depth of a template's own nesting.
const maxNesting = 200

type parser struct {
	tokens []token
	pos    int
	depth  int
	// softDepth counts the ifs around: there an unknown filter or test is only an
	// error when it is reached.
	softDepth int
	loopDepth int
}

func (p *parser) cur() *token  { return &p.tokens[p.pos] }
func (p *parser) peek() *token { return &p.tokens[min(p.pos+1, len(p.tokens)-1)] }
func (p *parser) next() *token {
	t := p.cur()
	if p.pos < len(p.tokens)-1 {
		p.pos++
	}
	return t
}

func (p *parser) fail(format string, args ...any) error {
	return &Error{Line: p.cur().line, Msg: fmt.Sprintf(format, args...)}
}

func (t *token) isOp(op string) bool     { return t.kind == tokOp && t.text == op }
func (t *token) isName(name string) bool { return t.kind == tokName && t.text == name }

func (t *token) describe() string {
	switch t.kind {
	case tokEOF:
		return "end of template"
	case tokBlockEnd:
		return "end of statement block"
	case tokVarEnd:
		return "end of print statement"
	}
	return "'" + t.text + "'"
}

func (p *parser) acceptOp(op string) bool {
	if p.cur().isOp(op) {
		p.next()
		return true
	}
	return false
}

func (p *parser) acceptName(name string) bool {
	if p.cur().isName(name) {
		p.next()
		return true
	}
	return false
}

func (p *parser) expectOp(op string) error {
	if !p.acceptOp(op) {
		return p.fail("expected token '%s', got %s", op, p.cur().describe())
	}
	return nil
}

func (p *parser) expect(kind tokenKind, what string) (*token, error) {
	if p.cur().kind != kind {
		return nil, p.fail("expected %s, got %s", what, p.cur().describe())
	}
	return p.next(), nil
}

func (p *parser) enter() error {
	if p.depth++; p.depth > maxNesting {
		return p.fail("nested too deeply")
	}
	return nil
}

func (p *parser) leave() { p.depth-- }

// body parses until one of the end tags, which it consumes up to its name; it
// returns that name. Without end tags it parses to the end of the template.
func (p *parser) body(ends ...string) ([]stmt, string, error) {
	if err := p.enter(); err != nil {
		return nil, "", err
	}
	defer p.leave()
	var out []stmt
	for {
		switch t := p.cur(); t.kind {
		case tokEOF:
			if len(ends) > 0 {
				return nil, "", p.fail("unexpected end of template, expected %s", strings.Join(ends, " or "))
			}
			return out, "", nil
		case tokData:
			out = append(out, &dataStmt{t.text})
			p.next()
		case tokVarBegin:
			p.next()
			s, err := p.output(tokVarEnd)
			if err != nil {
				return nil, "", err
			}
			out = append(out, s)
		case tokBlockBegin:
			p.next()
			name, err := p.expect(tokName, "a tag name")
			if err != nil {
				return nil, "", err
			}
			for _, end := range ends {
				if name.text == end {
					return out, end, nil
				}
			}
			s, err := p.statement(name)
			if err != nil {
				return nil, "", err
			}
			out = append(out, s)
		default:
			return nil, "", p.fail("unexpected %s", t.describe())
		}
	}
}

func (p *parser) blockEnd() error {
	_, err := p.expect(tokBlockEnd, "end of statement block")
	return err
}

// output parses expressions to print, up to the end of the tag.
func (p *parser) output(end tokenKind) (stmt, error) {
	line := p.cur().line
	x, err := p.tuple(true, nil)
	if err != nil {
		return nil, err
	}
	if _, err := p.expect(end, "end of print statement"); err != nil {
		return nil, err
	}
	return &outputStmt{exprs: []expr{x}, line: line}, nil
}

func (p *parser) statement(name *token) (stmt, error) {
	switch name.text {
	case "for":
		return p.parseFor(name.line)
	case "if":
		return p.parseIf(name.line)
	case "set":
		return p.parseSet(name.line)
	case "with":
		return p.parseWith(name.line)
	case "macro":
		return p.parseMacro(name.line)
	case "call":
		return p.parseCall(name.line)
	case "filter":
		return p.parseFilter(name.line)
	case "generation":
		return p.parseGeneration(name.line)
	case "print":
		return p.parsePrint(name.line)
	case "break", "continue":
		if p.loopDepth == 0 {
			return nil, &Error{Line: name.line, Msg: "'" + name.text + "' outside loop"}
		}
		what := breakLoop
		if name.text == "continue" {
			what = continueLoop
		}
		return &controlStmt{what}, p.blockEnd()
	case "block", "extends", "include", "import", "from", "autoescape":
		return nil, &Error{Line: name.line, Msg: "the tag '" + name.text + "' is not supported"}
	}
	return nil, &Error{Line: name.line, Msg: "encountered unknown tag '" + name.text + "'"}
}

func (p *parser) parsePrint(line int) (stmt, error) {
	out := &outputStmt{line: line}
	for p.cur().kind != tokBlockEnd {
		if len(out.exprs) > 0 {
			if err := p.expectOp(","); err != nil {
				return nil, err
			}
		}
		x, err := p.expression(true)
		if err != nil {
			return nil, err
		}
		out.exprs = append(out.exprs, x)
	}
	return out, p.blockEnd()
}

func (p *parser) parseFor(line int) (stmt, error) {
	s := &forStmt{line: line}
	var err error
	if s.target, err = p.assignTarget(true, []string{"in"}, false); err != nil {
		return nil, err
	}
	if !p.acceptName("in") {
		return nil, p.fail("expected token 'in', got %s", p.cur().describe())
	}
	if s.iter, err = p.tuple(false, []string{"recursive"}); err != nil {
		return nil, err
	}
	if p.acceptName("if") {
		if s.test, err = p.expression(true); err != nil {
			return nil, err
		}
	}
	s.recursive = p.acceptName("recursive")
	if err := p.blockEnd(); err != nil {
		return nil, err
	}
	p.loopDepth++
	end := ""
	s.body, end, err = p.body("endfor", "else")
	p.loopDepth--
	if err != nil {
		return nil, err
	}
	if end == "else" {
		if err := p.blockEnd(); err != nil {
			return nil, err
		}
		if s.orElse, _, err = p.body("endfor"); err != nil {
			return nil, err
		}
	}
	return s, p.blockEnd()
}

func (p *parser) parseIf(line int) (stmt, error) {
	s := &ifStmt{line: line}
	p.softDepth++
	defer func() { p.softDepth-- }()
	for {
		test, err := p.tuple(false, nil)
		if err != nil {
			return nil, err
		}
		if err := p.blockEnd(); err != nil {
			return nil, err
		}
		body, end, err := p.body("elif", "else", "endif")
		if err != nil {
			return nil, err
		}
		s.tests, s.bodies = append(s.tests, test), append(s.bodies, body)
		if end == "elif" {
			continue
		}
		if end == "else" {
			if err := p.blockEnd(); err != nil {
				return nil, err
			}
			if s.orElse, _, err = p.body("endif"); err != nil {
				return nil, err
			}
		}
		return s, p.blockEnd()
	}
}

func (p *parser) parseSet(line int) (stmt, error) {
	t, err := p.assignTarget(true, nil, true)
	if err != nil {
		return nil, err
	}
	if p.acceptOp("=") {
		value, err := p.tuple(true, nil)
		if err != nil {
			return nil, err
		}
		return &setStmt{target: t, value: value, line: line}, p.blockEnd()
	}
	s := &setBlockStmt{target: t, line: line}
	if s.filter, err = p.filters(nil, false); err != nil {
		return nil, err
	}
	if err := p.blockEnd(); err != nil {
		return nil, err
	}
	if s.body, _, err = p.body("endset"); err != nil {
		return nil, err
	}
	return s, p.blockEnd()
}

func (p *parser) parseWith(line int) (stmt, error) {
	s := &withStmt{line: line}
	for p.cur().kind != tokBlockEnd {
		if len(s.targets) > 0 {
			if err := p.expectOp(","); err != nil {
				return nil, err
			}
		}
		t, err := p.assignTarget(true, nil, false)
		if err != nil {
			return nil, err
		}
		if err := p.expectOp("="); err != nil {
			return nil, err
		}
		v, err := p.expression(true)
		if err != nil {
			return nil, err
		}
		s.targets, s.values = append(s.targets, t), append(s.values, v)
	}
	if err := p.blockEnd(); err != nil {
		return nil, err
	}
	var err error
	if s.body, _, err = p.body("endwith"); err != nil {
		return nil, err
	}
	return s, p.blockEnd()
}

// signature parses the parameters of a macro or a call block.
func (p *parser) signature(m *macroStmt) error {
	if err := p.expectOp("("); err != nil {
		return err
	}
	for !p.acceptOp(")") {
		if len(m.params) > 0 {
			if err := p.expectOp(","); err != nil {
				return err
			}
		}
		name, err := p.targetName()
		if err != nil {
			return err
		}
		m.params = append(m.params, name)
		if p.acceptOp("=") {
			value, err := p.expression(true)
			if err != nil {
				return err
			}
			m.defaults = append(m.defaults, value)
		} else if len(m.defaults) > 0 {
			return p.fail("non-default argument follows default argument")
		}
	}
	return nil
}

// macroBody parses the body of something that becomes a function: loops around it
// do not reach inside.
func (p *parser) macroBody(m *macroStmt, end string) error {
	if err := p.blockEnd(); err != nil {
		return err
	}
	loops := p.loopDepth
	p.loopDepth = 0
	defer func() { p.loopDepth = loops }()
	var err error
	if m.body, _, err = p.body(end); err != nil {
		return err
	}
	return p.blockEnd()
}

func (p *parser) parseMacro(line int) (stmt, error) {
	name, err := p.targetName()
	if err != nil {
		return nil, err
	}
	m := &macroStmt{name: name.name, line: line}
	if err := p.signature(m); err != nil {
		return nil, err
	}
	return m, p.macroBody(m, "endmacro")
}

func (p *parser) parseCall(line int) (stmt, error) {
	m := &macroStmt{name: "caller", line: line}
	if p.cur().isOp("(") {
		if err := p.signature(m); err != nil {
			return nil, err
		}
	}
	x, err := p.expression(true)
	if err != nil {
		return nil, err
	}
	call, ok := x.(*callExpr)
	if !ok {
		return nil, &Error{Line: line, Msg: "expected call"}
	}
	call.caller = m
	return &callStmt{call: call, line: line}, p.macroBody(m, "endcall")
}

// parseGeneration parses the tag that marks the assistant's own text. It prints
// its body; like a call block it has a scope of its own.
func (p *parser) parseGeneration(line int) (stmt, error) {
	m := &macroStmt{name: "caller", line: line}
	call := &callExpr{fn: &constExpr{printCaller}, caller: m}
	return &callStmt{call: call, line: line}, p.macroBody(m, "endgeneration")
}

func (p *parser) parseFilter(line int) (stmt, error) {
	s := &filterStmt{line: line}
	var err error
	if s.filter, err = p.filters(nil, true); err != nil {
		return nil, err
	}
	if err := p.blockEnd(); err != nil {
		return nil, err
	}
	if s.body, _, err = p.body("endfilter"); err != nil {
		return nil, err
	}
	return s, p.blockEnd()
}

// targetName parses a name that is assigned to.
func (p *parser) targetName() (*nameExpr, error) {
	t, err := p.expect(tokName, "a name")
	if err != nil {
		return nil, err
	}
	switch t.text {
	case "true", "false", "none", "True", "False", "None":
		return nil, &Error{Line: t.line, Msg: "can't assign to '" + t.text + "'"}
	}
	return &nameExpr{name: t.text, line: t.line}, nil
}

// assignTarget parses what is assigned to; stop are names that end a tuple.
func (p *parser) assignTarget(tuple bool, stop []string, attrs bool) (target, error) {
	if err := p.enter(); err != nil {
		return target{}, err
	}
	defer p.leave()
	one := func() (target, error) {
		if p.acceptOp("(") {
			inner, err := p.assignTarget(true, nil, false)
			if err != nil {
				return target{}, err
			}
			return inner, p.expectOp(")")
		}
		name, err := p.targetName()
		if err != nil {
			return target{}, err
		}
		if attrs && p.cur().isOp(".") {
			p.next()
			attr, err := p.expect(tokName, "a name")
			if err != nil {
				return target{}, err
			}
			return target{name: name, attr: attr.text}, nil
		}
		return target{name: name}, nil
	}
	first, err := one()
	if err != nil || !tuple || !p.cur().isOp(",") {
		return first, err
	}
	many := []target{first}
	for p.acceptOp(",") {
		if t := p.cur(); t.isOp("=") || t.isOp(")") || t.kind == tokBlockEnd || len(stop) > 0 && t.isName(stop[0]) {
			break
		}
		t, err := one()
		if err != nil {
			return target{}, err
		}
		many = append(many, t)
	}
	return target{many: many}, nil
}
