module github.com/sheaf-rl/sheaf

go 1.26

require pgregory.net/rapid v1.3.0
