package rbd

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/flock"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/volume/access"
)

// name returns the key of an image's operations and of its lock. Images of one
// name in two clusters share it.
func name(pool, image string) string { return pool + "/" + image }

// run runs an operation on the image of a target, or joins the same one. It
// waits until ctx ends, or the attacher's timeout.
func run[T any](ctx context.Context, a *Attacher, name, what string, t node.Target, fn func(context.Context) (T, error)) (T, error) {
	var none T
	if n := len(a.ops.Running()); n >= maxOperations {
		return none, errs.Errorf(errs.Unavailable, "%d operations on RBD images wait for their clusters, which is the limit: repair the clusters, or restart this node", n)
	}
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, a.config.Timeout)
	defer cancel()
	request := op.Request{Keys: []string{name}, Fingerprint: what + " " + t.Device.Backing, What: what}
	if t.Locator != nil {
		request.Fingerprint += fmt.Sprint(access.Encode(t.Locator))
	}
	result, err := op.Do(ctx, a.ops, request, func(ctx context.Context) (T, error) {
		unlock, err := a.lock(ctx, name)
		if err != nil {
			return none, err
		}
		defer unlock()
		return fn(ctx)
	})
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) && errs.KindOf(err) == errs.Internal {
		return none, errs.Errorf(errs.Unavailable, "%s of the RBD image %s: the Ceph cluster has not answered for %v; the operation goes on, repeat the call to get its result (%w)", what, name, time.Since(begun).Round(time.Second), err)
	}
	return result, err
}

// lockWait is how long an operation waits for one of another process.
const lockWait = 10 * time.Second

// lock excludes operations of other processes on an image. The kernel releases
// the lock of a process that ends.
func (a *Attacher) lock(ctx context.Context, name string) (unlock func(), err error) {
	f, err := a.openLock()
	if err != nil {
		return nil, fmt.Errorf("lock of the RBD images: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	sum := sha256.Sum256([]byte(name))
	if err := flock.LockByte(ctx, f, int64(binary.BigEndian.Uint64(sum[:])>>2)); err != nil {
		f.Close()
		if errors.Is(err, flock.ErrHeld) {
			err = errs.Errorf(errs.Busy, "another process of this driver works on the RBD image %s: %w", name, err)
		}
		return nil, err
	}
	return func() { f.Close() }, nil
}
