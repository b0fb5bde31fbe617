package chart

import (
	"context"
	"os"
	"testing"
)

// background is for what all tests share, and no test's end may stop.
var background = context.Background()

func TestMain(m *testing.M) {
	code := m.Run()
	if p, err := peers(); err == nil {
		_ = os.RemoveAll(p.dir)
	}
	os.Exit(code)
}
