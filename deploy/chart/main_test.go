package chart

import (
	"context"
	"os"
	"testing"
)

// background outlives single tests, for state that all tests share.
var background = context.Background()

func TestMain(m *testing.M) {
	code := m.Run()
	if p, err := peers(); err == nil {
		_ = os.RemoveAll(p.dir)
	}
	os.Exit(code)
}
