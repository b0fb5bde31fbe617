package rbd

import (
	"context"
	"fmt"

	"github.com/cleatproject/cleat/internal/deviceop"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/volume/access"
)

// name returns the key of an image's operations and of its lock. Images of one
// name in two clusters share it.
func name(pool, image string) string { return pool + "/" + image }

// run runs an operation on the image of a target, or joins the same one.
func run[T any](ctx context.Context, a *Attacher, name, what string, t node.Target, fn func(context.Context) (T, error)) (T, error) {
	fingerprint := t.Device.Backing
	if t.Locator != nil {
		fingerprint += fmt.Sprint(access.Encode(t.Locator))
	}
	return deviceop.Do(ctx, a.ops, name, what, fingerprint, fn)
}
