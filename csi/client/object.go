package client

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/errs"
)

// Object holds the fields common to volumes, snapshots and groups.
type Object struct {
	ID string `json:"id,omitempty"`
	// Name of the request, also of a foreign volume of cleat's driver; of other
	// foreign objects the id.
	Name   string `json:"name"`
	Driver string `json:"driver"`
	State  string `json:"state"`
}

// States of an Object.
const (
	StateReady    = "ready"
	StateCreating = "creating" // the call was interrupted: repeat it
	StateDeleting = "deleting" // likewise
	StateForeign  = "foreign"  // not created here
	StateMissing  = "missing"  // created here, but the driver does not have it
)

func (o *Object) id() (driver, key string) { return o.Driver, o.Name }

func (o *Object) object() *Object { return o }

// objectRecord is the record of an object created here.
type objectRecord interface {
	record
	object() *Object
}

func kind(n objectRecord) string { return strings.TrimSuffix(n.folder(), "s") }

// usable refuses an object of an interrupted call.
func usable[N objectRecord](n N, err error) (N, error) {
	if err != nil {
		return n, err
	}
	if o := n.object(); o.State == StateCreating || o.State == StateDeleting {
		return n, errs.Errorf(errs.Precondition, "%s %s is %s: that call was interrupted, repeat it first", kind(n), o.Name, o.State)
	}
	return n, nil
}

// byRef prefers names to ids.
func byRef[N objectRecord](all []N, ref string) (found N, ok bool) {
	for _, n := range all {
		if n.object().Name == ref {
			return n, true
		}
		if ref != "" && n.object().ID == ref {
			found, ok = n, true
		}
	}
	return found, ok
}

func locked[N objectRecord](ctx context.Context, d *Driver, find func(ctx context.Context, ref string) (N, error), ref string, fn func(N) error) error {
	n, err := find(ctx, ref)
	if err != nil {
		return err
	}
	unlock, err := d.state.lock(ctx, n)
	if err != nil {
		return err
	}
	defer unlock()
	if n, err = find(ctx, ref); err != nil { // it can have changed before the lock
		return err
	}
	return fn(n)
}

// createObject writes the record, then calls create; known: the record is from
// an earlier call. A refused create leaves no record.
func createObject[N objectRecord](ctx context.Context, d *Driver, n N, create func(old N, known bool) error) error {
	unlock, err := d.state.lock(ctx, n)
	if err != nil {
		return err
	}
	defer unlock()
	old, known, err := stored(d.state, n)
	switch {
	case err != nil:
		return err
	case known && old.object().State == StateDeleting:
		return errs.Errorf(errs.Precondition, "%s %q is being deleted; delete it again to finish that, then create it again", kind(n), n.object().Name)
	case !known:
		if err := d.state.put(n); err != nil {
			return err
		}
	}
	if err = create(old, known); !known && isFinal(err) {
		return errors.Join(err, d.state.drop(n))
	}
	return err
}

// deleteObject deletes an object and its record, under the object's lock. Of
// one whose create was interrupted, create finds the id first.
func deleteObject[N objectRecord](d *Driver, n N, create, remove func() error) error {
	o := n.object()
	if o.State == StateCreating {
		if err := create(); isFinal(err) {
			return d.state.drop(n)
		} else if err != nil {
			return err
		}
	}
	_, known, err := stored(d.state, n)
	if err != nil {
		return err
	}
	before := o.State
	o.State = StateDeleting
	if err := d.state.put(n); err != nil {
		return err
	}
	err = remove()
	switch {
	case err == nil, codeOf(err) == codes.NotFound:
		return d.state.drop(n)
	case !isFinal(err):
		return err
	case !known:
		return errors.Join(err, d.state.drop(n))
	}
	o.State = before
	return errors.Join(err, d.state.put(n))
}
