package jinja

import "slices"

// expression parses one expression; withCond allows an inline if.
func (p *parser) expression(withCond bool) (expr, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	if withCond {
		return p.condExpr()
	}
	return p.or()
}

func (p *parser) condExpr() (expr, error) {
	x, err := p.or()
	if err != nil {
		return nil, err
	}
	for p.acceptName("if") {
		c := &condExpr{then: x}
		if c.test, err = p.or(); err != nil {
			return nil, err
		}
		if p.acceptName("else") {
			if c.otherwise, err = p.expression(true); err != nil {
				return nil, err
			}
		}
		x = c
	}
	return x, nil
}

func (p *parser) or() (expr, error) {
	x, err := p.and()
	for err == nil && p.acceptName("or") {
		var r expr
		r, err = p.and()
		x = &logicExpr{l: x, r: r}
	}
	return x, err
}

func (p *parser) and() (expr, error) {
	x, err := p.not()
	for err == nil && p.acceptName("and") {
		var r expr
		r, err = p.not()
		x = &logicExpr{and: true, l: x, r: r}
	}
	return x, err
}

func (p *parser) not() (expr, error) {
	if !p.cur().isName("not") {
		return p.compare()
	}
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	p.next()
	x, err := p.not()
	return &unaryExpr{'!', x}, err
}

func (p *parser) compare() (expr, error) {
	first, err := p.binary(0)
	if err != nil {
		return nil, err
	}
	c := &compareExpr{first: first}
	for {
		t := p.cur()
		op := ""
		switch {
		case t.kind == tokOp && slices.Contains([]string{"==", "!=", "<", "<=", ">", ">="}, t.text):
			op = t.text
		case t.isName("in"):
			op = "in"
		case t.isName("not") && p.peek().isName("in"):
			p.next()
			op = "not in"
		}
		if op == "" {
			break
		}
		p.next()
		x, err := p.binary(0)
		if err != nil {
			return nil, err
		}
		c.ops, c.rest = append(c.ops, op), append(c.rest, x)
	}
	if len(c.ops) == 0 {
		return first, nil
	}
	return c, nil
}

// binary parses the arithmetic operators from one level of precedence up.
func (p *parser) binary(level int) (expr, error) {
	levels := [...][]string{{"+", "-"}, {"~"}, {"*", "/", "//", "%"}, {"**"}}
	if level == len(levels) {
		return p.unary(true)
	}
	x, err := p.binary(level + 1)
	if err != nil {
		return nil, err
	}
	var parts []expr
	closed := true // a sum that x is already stands in brackets
	for t := p.cur(); t.kind == tokOp && slices.Contains(levels[level], t.text); t = p.cur() {
		p.next()
		r, err := p.binary(level + 1)
		if err != nil {
			return nil, err
		}
		if t.text == "~" {
			parts = append(parts, r)
			continue
		}
		if sum, ok := x.(*sumExpr); ok && t.text == "+" && !closed {
			sum.terms = append(sum.terms, r)
		} else if t.text == "+" {
			x, closed = &sumExpr{[]expr{x, r}}, false
		} else {
			x = &binaryExpr{t.text, x, r}
		}
	}
	if parts != nil {
		return &concatExpr{append([]expr{x}, parts...)}, nil
	}
	return x, nil
}

func (p *parser) unary(withFilter bool) (expr, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	var x expr
	var err error
	if t := p.cur(); t.isOp("-") || t.isOp("+") {
		p.next()
		x, err = p.unary(false)
		x = &unaryExpr{t.text[0], x}
	} else {
		x, err = p.primary()
	}
	if err == nil {
		x, err = p.postfix(x)
	}
	if err == nil && withFilter {
		x, err = p.filterExpr(x)
	}
	return x, err
}

func (p *parser) primary() (expr, error) {
	t := p.next()
	switch t.kind {
	case tokName:
		switch t.text {
		case "true", "True":
			return &constExpr{true}, nil
		case "false", "False":
			return &constExpr{false}, nil
		case "none", "None":
			return &constExpr{nil}, nil
		}
		return &nameExpr{name: t.text, line: t.line}, nil
	case tokString:
		text := t.text
		for p.cur().kind == tokString {
			text += p.next().text
		}
		return &constExpr{text}, nil
	case tokInt, tokFloat:
		return &constExpr{t.num}, nil
	case tokOp:
		switch t.text {
		case "(":
			x, err := p.parenthesised()
			if err != nil {
				return nil, err
			}
			return x, p.expectOp(")")
		case "[":
			return p.list()
		case "{":
			return p.dict()
		}
	}
	return nil, &Error{Line: t.line, Msg: "unexpected " + t.describe()}
}

func (p *parser) parenthesised() (expr, error) {
	if p.cur().isOp(")") {
		return &tupleExpr{}, nil
	}
	return p.tuple(true, nil)
}

// tuple parses an expression or, where commas follow, a tuple of them. stop are
// names that end it.
func (p *parser) tuple(withCond bool, stop []string) (expr, error) {
	ends := func() bool {
		t := p.cur()
		return t.kind == tokVarEnd || t.kind == tokBlockEnd || t.isOp(")") ||
			t.kind == tokName && slices.Contains(stop, t.text)
	}
	var items []expr
	isTuple := false
	for {
		if len(items) > 0 && !p.acceptOp(",") {
			break
		}
		isTuple = len(items) > 0
		if ends() {
			break
		}
		x, err := p.expression(withCond)
		if err != nil {
			return nil, err
		}
		items = append(items, x)
		if !p.cur().isOp(",") {
			break
		}
	}
	if len(items) == 0 {
		return nil, p.fail("expected an expression, got %s", p.cur().describe())
	}
	if isTuple {
		return &tupleExpr{items}, nil
	}
	return items[0], nil
}

func (p *parser) list() (expr, error) {
	x := new(listExpr)
	for !p.acceptOp("]") {
		if len(x.items) > 0 {
			if err := p.expectOp(","); err != nil {
				return nil, err
			}
			if p.acceptOp("]") {
				break
			}
		}
		item, err := p.expression(true)
		if err != nil {
			return nil, err
		}
		x.items = append(x.items, item)
	}
	return x, nil
}

func (p *parser) dict() (expr, error) {
	x := new(dictExpr)
	for !p.acceptOp("}") {
		if len(x.keys) > 0 {
			if err := p.expectOp(","); err != nil {
				return nil, err
			}
			if p.acceptOp("}") {
				break
			}
		}
		key, err := p.expression(true)
		if err != nil {
			return nil, err
		}
		if err := p.expectOp(":"); err != nil {
			return nil, err
		}
		value, err := p.expression(true)
		if err != nil {
			return nil, err
		}
		x.keys, x.values = append(x.keys, key), append(x.values, value)
	}
	return x, nil
}

// postfix parses attributes, subscripts and calls.
func (p *parser) postfix(x expr) (expr, error) {
	for {
		var err error
		switch t := p.cur(); {
		case t.isOp("."), t.isOp("["):
			x, err = p.subscript(x)
		case t.isOp("("):
			x, err = p.call(x)
		default:
			return x, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// filterExpr parses filters, tests and calls of their results.
func (p *parser) filterExpr(x expr) (expr, error) {
	for {
		var err error
		switch t := p.cur(); {
		case t.isOp("|"):
			x, err = p.filters(x, false)
		case t.isName("is"):
			x, err = p.test(x)
		case t.isOp("("):
			x, err = p.call(x)
		default:
			return x, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (p *parser) subscript(x expr) (expr, error) {
	if p.acceptOp(".") {
		t := p.next()
		switch t.kind {
		case tokName:
			return &attrExpr{x, t.text}, nil
		case tokInt:
			return &indexExpr{x, &constExpr{t.num}}, nil
		}
		return nil, &Error{Line: t.line, Msg: "expected name or number"}
	}
	p.next()
	var items []expr
	var result expr
	for !p.acceptOp("]") {
		if len(items) > 0 {
			if err := p.expectOp(","); err != nil {
				return nil, err
			}
		}
		item, isSlice, err := p.subscribed(x)
		if err != nil {
			return nil, err
		}
		if isSlice {
			if len(items) > 0 || !p.cur().isOp("]") {
				return nil, p.fail("a slice inside a tuple is not supported")
			}
			result = item
		}
		items = append(items, item)
	}
	switch {
	case len(items) == 0:
		return nil, p.fail("expected subscript expression")
	case result != nil:
		return result, nil
	case len(items) == 1:
		return &indexExpr{x, items[0]}, nil
	}
	return &indexExpr{x, &tupleExpr{items}}, nil
}

// subscribed parses one index or slice of x.
func (p *parser) subscribed(x expr) (item expr, isSlice bool, err error) {
	s := &sliceExpr{obj: x}
	if !p.cur().isOp(":") {
		if s.start, err = p.expression(true); err != nil {
			return nil, false, err
		}
		if !p.cur().isOp(":") {
			return s.start, false, nil
		}
	}
	bounds := []*expr{&s.stop, &s.step}
	for _, bound := range bounds {
		if !p.acceptOp(":") {
			break
		}
		if t := p.cur(); t.isOp(":") || t.isOp("]") || t.isOp(",") {
			continue
		}
		if *bound, err = p.expression(true); err != nil {
			return nil, false, err
		}
	}
	return s, true, nil
}

func (p *parser) call(fn expr) (expr, error) {
	args, err := p.arguments()
	x := &callExpr{fn: fn, args: args}
	if attr, ok := fn.(*attrExpr); ok {
		if m, ok := stringMethods[attr.name]; ok {
			x.method = &m
		}
	}
	return x, err
}

func (p *parser) arguments() (callArgs, error) {
	var a callArgs
	if err := p.expectOp("("); err != nil {
		return a, err
	}
	comma := false
	for !p.acceptOp(")") {
		if comma {
			if err := p.expectOp(","); err != nil {
				return a, err
			}
			if p.acceptOp(")") {
				break
			}
		}
		comma = true
		bad := p.fail("invalid syntax for function call expression")
		var err error
		switch {
		case p.acceptOp("*"):
			if a.star != nil || a.starStar != nil {
				return a, bad
			}
			a.star, err = p.expression(true)
		case p.acceptOp("**"):
			if a.starStar != nil {
				return a, bad
			}
			a.starStar, err = p.expression(true)
		case p.cur().kind == tokName && p.peek().isOp("="):
			if a.starStar != nil {
				return a, bad
			}
			name := p.next().text
			p.next()
			if slices.Contains(a.names, name) {
				return a, p.fail("keyword argument repeated: %s", name)
			}
			var x expr
			x, err = p.expression(true)
			a.names, a.named = append(a.names, name), append(a.named, x)
		default:
			if len(a.names) > 0 || a.star != nil || a.starStar != nil {
				return a, bad
			}
			var x expr
			x, err = p.expression(true)
			a.pos = append(a.pos, x)
		}
		if err != nil {
			return a, err
		}
	}
	return a, nil
}

// filters parses a chain of filters; inline means that the first has no bar.
func (p *parser) filters(x expr, inline bool) (expr, error) {
	for p.cur().isOp("|") || inline {
		if !inline {
			p.next()
		}
		inline = false
		name, err := p.dotted()
		if err != nil {
			return nil, err
		}
		f := &filterExpr{name: name, x: x}
		if f.fn = filterNamed(name); f.fn == nil && p.softDepth == 0 {
			return nil, p.fail("no filter named '%s'", name)
		}
		if p.cur().isOp("(") {
			if f.args, err = p.arguments(); err != nil {
				return nil, err
			}
		}
		x = f
	}
	return x, nil
}

func (p *parser) dotted() (string, error) {
	t, err := p.expect(tokName, "a name")
	if err != nil {
		return "", err
	}
	name := t.text
	for p.acceptOp(".") {
		t, err := p.expect(tokName, "a name")
		if err != nil {
			return "", err
		}
		name += "." + t.text
	}
	return name, nil
}

func (p *parser) test(x expr) (expr, error) {
	p.next()
	negated := p.acceptName("not")
	name, err := p.dotted()
	if err != nil {
		return nil, err
	}
	t := &testExpr{name: name, x: x}
	if t.fn = testNamed(name); t.fn == nil && p.softDepth == 0 {
		return nil, p.fail("no test named '%s'", name)
	}
	switch c := p.cur(); {
	case c.isOp("("):
		t.args, err = p.arguments()
	case c.kind == tokString, c.kind == tokInt, c.kind == tokFloat, c.isOp("["), c.isOp("{"),
		c.kind == tokName && !slices.Contains([]string{"else", "or", "and"}, c.text):
		if c.isName("is") {
			return nil, p.fail("you cannot chain multiple tests with is")
		}
		var arg expr
		if arg, err = p.primary(); err == nil {
			arg, err = p.postfix(arg)
		}
		t.args.pos = []expr{arg}
	}
	if err != nil {
		return nil, err
	}
	if negated {
		return &unaryExpr{'!', t}, nil
	}
	return t, nil
}
