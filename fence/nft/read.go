package nft

import (
	"context"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cidr"
	"github.com/cleatproject/cleat/internal/linux/nft"
)

// maxReads bounds reads interrupted by changes.
const maxReads = 100

// read is consistent across tables.
func (f *Filter) read(ctx context.Context, clients bool) ([]reading, error) {
	for range maxReads {
		before, err := f.reader.Generation(ctx)
		if err != nil {
			return nil, wrapKind("read the packet filter", err)
		}
		readings := make([]reading, len(f.layouts))
		for i, l := range f.layouts {
			if readings[i], err = l.read(ctx, f.reader, clients); err != nil {
				return nil, wrapKind("read the packet filter", err)
			}
		}
		after, err := f.reader.Generation(ctx)
		if err != nil {
			return nil, wrapKind("read the packet filter", err)
		}
		if before == after {
			return readings, nil
		}
	}
	return nil, errs.Errorf(errs.Unavailable, "the packet filter changed during each of %d reads", maxReads)
}

// Missing objects stay zero.
func (l layout) read(ctx context.Context, c *nft.Conn, clients bool) (reading, error) {
	r := reading{elements: map[string][]nft.Element{}}
	var err error
	if r.table, err = orZero(c.Table(ctx, l.table)); err != nil || r.table.Name == "" {
		return r, err
	}
	for _, want := range l.chains() {
		got, err := orZero(c.Chain(ctx, l.table, want.Name))
		if err != nil {
			return r, err
		}
		r.chains = append(r.chains, got)
	}
	for _, want := range l.sets() {
		got, err := orZero(c.Set(ctx, l.table, want.Name))
		if err != nil {
			return r, err
		}
		r.sets = append(r.sets, got)
		if !clients && (want.Name == clients4 || want.Name == clients6) {
			continue
		}
		if r.elements[want.Name], err = orZero(c.Elements(ctx, l.table, want.Name)); err != nil {
			return r, err
		}
	}
	r.rules, err = orZero(c.Rules(ctx, l.table))
	return r, err
}

func orZero[T any](got T, err error) (T, error) {
	if errors.Is(err, unix.ENOENT) {
		var none T
		return none, nil
	}
	return got, err
}

func (r reading) blocks() ([]netip.Prefix, error) {
	v4, err := parseIntervals(r.elements[clients4], 4)
	if err != nil {
		return nil, err
	}
	v6, err := parseIntervals(r.elements[clients6], 16)
	if err != nil {
		return nil, err
	}
	return cidr.Merge(append(v4, v6...))
}

// clientsIn returns the blocks of all tables.
func clientsIn(readings []reading) (all []netip.Prefix, err error) {
	for _, r := range readings {
		blocks, err := r.blocks()
		if err != nil {
			return nil, errs.Errorf(errs.Precondition, "another program has changed the clients of table inet %s: %w", r.table.Name, err)
		}
		all = append(all, blocks...)
	}
	return cidr.Merge(all)
}

func wrapKind(what string, err error) error {
	kind := errs.Internal
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
		kind = errs.Unavailable
	case errors.Is(err, unix.EPERM):
		kind = errs.Precondition
	}
	return errs.Errorf(kind, "%s: %w", what, err)
}
