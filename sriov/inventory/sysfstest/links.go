package sysfstest

import (
	"context"
	"slices"

	"github.com/cleatproject/cleat/internal/linux/netlinks"
)

// Links is a fake inventory.Links on a Tree. A set error replaces the result.
type Links struct {
	Tree                *Tree
	LinksErr, RoutesErr error
}

func (l Links) Links(ctx context.Context) ([]netlinks.Link, error) {
	if l.LinksErr != nil {
		return nil, l.LinksErr
	}
	l.Tree.mu.Lock()
	defer l.Tree.mu.Unlock()
	return slices.Clone(l.Tree.links), ctx.Err()
}

// DefaultRoutes returns the links of Tree.Route.
func (l Links) DefaultRoutes(ctx context.Context) ([]int, error) {
	if l.RoutesErr != nil {
		return nil, l.RoutesErr
	}
	l.Tree.mu.Lock()
	defer l.Tree.mu.Unlock()
	return slices.Clone(l.Tree.routes), ctx.Err()
}
