package testkit

import (
	"context"
	"testing"
)

// Canceled returns a canceled context.
func Canceled(t testing.TB) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
