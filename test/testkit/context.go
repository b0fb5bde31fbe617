package testkit

import (
	"context"
	"testing"
)

// Canceled returns a context that has ended.
func Canceled(t testing.TB) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
