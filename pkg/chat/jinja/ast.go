package jinja

// expr is an expression.
type expr interface {
	eval(f *frame) (Value, error)
}

// stmt is a statement or a piece of output.
type stmt interface {
	exec(f *frame) (control, error)
}

// control is how a statement ended.
type control uint8

const (
	goOn control = iota
	breakLoop
	continueLoop
)

type (
	constExpr struct{ value Value }
	nameExpr  struct {
		name string
		line int
		ref  varRef
	}
	listExpr  struct{ items []expr }
	tupleExpr struct{ items []expr }
	dictExpr  struct{ keys, values []expr }
	attrExpr  struct {
		obj  expr
		name string
	}
	indexExpr struct{ obj, index expr }
	sliceExpr struct{ obj, start, stop, step expr }
	unaryExpr struct {
		op byte // '-', '+' or '!'
		x  expr
	}
	binaryExpr struct {
		op   string
		l, r expr
	}
	// sumExpr is a chain of +, which is how templates join text.
	sumExpr   struct{ terms []expr }
	logicExpr struct {
		and  bool
		l, r expr
	}
	compareExpr struct {
		first expr
		ops   []string
		rest  []expr
	}
	concatExpr struct{ parts []expr }
	condExpr   struct{ test, then, otherwise expr }
	filterExpr struct {
		name string
		fn   filterFunc
		x    expr // nil in a filter block: the text of the block
		args callArgs
	}
	testExpr struct {
		name string
		fn   testFunc
		x    expr
		args callArgs
	}
	callExpr struct {
		fn   expr
		args callArgs
		// method is the method of strings that fn is, should it be called on a string.
		method *stringFunc
		// caller is the body of a call block.
		caller *macroStmt
	}
)

// callArgs are the arguments of a call, a filter or a test.
type callArgs struct {
	pos      []expr
	names    []string
	named    []expr
	star     expr
	starStar expr
}

type (
	dataStmt   struct{ text string }
	outputStmt struct {
		exprs []expr
		line  int
	}
	ifStmt struct {
		tests  []expr
		bodies [][]stmt
		orElse []stmt
		line   int
	}
	forStmt struct {
		target    target
		iter      expr
		test      expr
		body      []stmt
		orElse    []stmt
		recursive bool
		line      int

		loopVar          *varRef // nil: the body does not speak of loop
		scope, elseScope *scope
		testScope        *scope
		testTarget       target
	}
	setStmt struct {
		target target
		value  expr
		line   int
	}
	setBlockStmt struct {
		target target
		filter expr // nil or a chain of filters on the block's text
		body   []stmt
		scope  *scope
		line   int
	}
	withStmt struct {
		targets []target
		values  []expr
		body    []stmt
		scope   *scope
		line    int
	}
	macroStmt struct {
		name     string
		ref      varRef
		params   []*nameExpr
		defaults []expr // of the last parameters
		body     []stmt
		scope    *scope
		line     int

		caller, varargs, kwargs *varRef
	}
	callStmt struct {
		call *callExpr
		line int
	}
	filterStmt struct {
		filter expr
		body   []stmt
		scope  *scope
		line   int
	}
	controlStmt struct{ what control }
)

// target is what is assigned to: a name, an attribute of a namespace, or a tuple
// of targets.
type target struct {
	name *nameExpr
	attr string // with name: an attribute of the namespace it holds
	many []target
}
