package testkit

import (
	"context"
	"testing"
)

func Canceled(t testing.TB) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
