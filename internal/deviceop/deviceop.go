// Package deviceop runs operations on this machine's devices that wait for a
// storage system without end. They outlive their callers: a call returns
// Unavailable at its deadline, and a repeat joins the operation. A lock on an
// object's name excludes operations of other processes.
package deviceop

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/flock"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/internal/op"
)

// Config configures Operations.
type Config struct {
	// Object and Storage are the words of messages: "RBD image", "Ceph cluster".
	Object, Storage string
	// Lock is the file with the locks; its directory is created.
	Lock string
	// Timeout limits the wait of one call.
	Timeout time.Duration
}

// Operations are those of one kind of object. Close them.
type Operations struct {
	config Config
	ops    *op.Operations
}

const (
	// otherWait is how long an operation waits for another one on its object.
	otherWait = 3 * time.Second
	// lockWait is how long it waits for one of another process.
	lockWait = 10 * time.Second
	// most is a limit for those that wait without end: each takes a thread.
	most = 128
)

// New returns Operations.
func New(c Config) *Operations {
	return &Operations{config: c, ops: op.New(context.Background(), otherWait)}
}

// Close waits for operations until ctx ends. Those that wait for a storage
// system end with the process.
func (o *Operations) Close(ctx context.Context) error { return o.ops.Close(ctx) }

// Waiting returns an error if an operation on an object runs longer than usual.
func (o *Operations) Waiting(object string, usual time.Duration) error {
	for _, r := range o.ops.Running() {
		if d := time.Since(r.Since); r.Keys[0] == o.key(object) && d > usual {
			return errs.Errorf(errs.Unavailable, "%s of the %s %s has waited %v for the %s", r.What, o.config.Object, object, d.Round(time.Second), o.config.Storage)
		}
	}
	return nil
}

// key has the kind of object, as its name can have a colon.
func (o *Operations) key(object string) string { return o.config.Object + ":" + object }

// Do runs an operation on an object, or joins the one with the same fingerprint.
// It waits until ctx ends, or for the timeout.
func Do[T any](ctx context.Context, o *Operations, object, what, fingerprint string, fn func(context.Context) (T, error)) (T, error) {
	var none T
	if n := len(o.ops.Running()); n >= most {
		return none, errs.Errorf(errs.Unavailable, "%d operations wait for a %s, which is the limit: repair it, or restart this node", n, o.config.Storage)
	}
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, o.config.Timeout)
	defer cancel()
	result, err := op.Do(ctx, o.ops, op.Request{Keys: []string{o.key(object)}, Fingerprint: what + " " + fingerprint, What: what}, func(ctx context.Context) (T, error) {
		ctx, unlock, err := Lock(ctx, lockWait, o.config.Lock, o.config.Object, object)
		if err != nil {
			return none, err
		}
		defer unlock()
		return fn(ctx)
	})
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) && errs.KindOf(err) == errs.Internal {
		return none, errs.Errorf(errs.Unavailable, "%s of the %s %s: the %s has not answered for %v; the operation goes on, repeat the call to get its result (%w)", what, o.config.Object, object, o.config.Storage, time.Since(begun).Round(time.Second), err)
	}
	return result, err
}

// Lock excludes operations of other processes on an object, and waits for them.
// It is a lock in a file, whose directory is created. The kernel
// releases the lock of a process that ends; calls of the package kernelcall with
// the returned context keep it until they have ended. Unavailable: such a call
// still runs. Busy: a process works on the object.
func Lock(ctx context.Context, wait time.Duration, file, kind, object string) (locked context.Context, unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return nil, nil, err
	}
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, nil, err
	}
	sum := sha256.Sum256([]byte(object))
	bounded, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	err = flock.LockByte(bounded, f, int64(binary.BigEndian.Uint64(sum[:])>>2))
	if err == nil {
		return kernelcall.Holding(ctx, object, f), func() { f.Close() }, nil
	}
	f.Close()
	if !errors.Is(err, flock.ErrHeld) {
		return nil, nil, err
	}
	if calls := kernelcall.Running(object); calls != "" {
		return nil, nil, errs.Errorf(errs.Unavailable, "the kernel has not finished a call for the %s %s (%s), made by a process of this driver that has ended: it waits for the storage; repair that, or restart this node (%w)", kind, object, calls, err)
	}
	return nil, nil, errs.Errorf(errs.Busy, "another process of this driver works on the %s %s: %w", kind, object, err)
}
