module github.com/sheaf-rl/sheaf

go 1.26
