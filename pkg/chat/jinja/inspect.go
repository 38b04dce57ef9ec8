package jinja

// LoopsOver tells whether the template loops over a variable or an attribute of
// that name, wherever in it.
func (t *Template) LoopsOver(name string) bool {
	found := false
	forEach(t.body, func(s stmt) {
		loop, ok := s.(*forStmt)
		if !ok {
			return
		}
		switch x := loop.iter.(type) {
		case *nameExpr:
			found = found || x.name == name
		case *attrExpr:
			found = found || x.name == name
		case *indexExpr:
			c, ok := x.index.(*constExpr)
			found = found || ok && c.value == name
		}
	})
	return found
}

// forEach visits all statements of a body, inner ones too.
func forEach(body []stmt, visit func(stmt)) {
	for _, s := range body {
		visit(s)
		switch s := s.(type) {
		case *ifStmt:
			for _, b := range s.bodies {
				forEach(b, visit)
			}
			forEach(s.orElse, visit)
		case *forStmt:
			forEach(s.body, visit)
			forEach(s.orElse, visit)
		case *setBlockStmt:
			forEach(s.body, visit)
		case *withStmt:
			forEach(s.body, visit)
		case *macroStmt:
			forEach(s.body, visit)
		case *callStmt:
			forEach(s.call.caller.body, visit)
		case *filterStmt:
			forEach(s.body, visit)
		}
	}
}
