package sysfstest

import (
	"context"
	"slices"

	"github.com/cleatproject/cleat/internal/linux/netlinks"
)

// Links are the network devices of a Tree, as discovery asks for them. The
// errors, where set, are its answers.
type Links struct {
	Tree                *Tree
	LinksErr, RoutesErr error
}

// Links lists them all.
func (l Links) Links(ctx context.Context) ([]netlinks.Link, error) {
	if l.LinksErr != nil {
		return nil, l.LinksErr
	}
	l.Tree.mu.Lock()
	defer l.Tree.mu.Unlock()
	return slices.Clone(l.Tree.links), ctx.Err()
}

// DefaultRoutes is what Tree.Route said.
func (l Links) DefaultRoutes(ctx context.Context) ([]int, error) {
	if l.RoutesErr != nil {
		return nil, l.RoutesErr
	}
	l.Tree.mu.Lock()
	defer l.Tree.mu.Unlock()
	return slices.Clone(l.Tree.routes), ctx.Err()
}
