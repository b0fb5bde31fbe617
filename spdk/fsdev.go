package spdk

import (
	"context"
	"encoding/json"

	"github.com/cleatproject/cleat/errs"
)

// Fsdev is a file system device of the process.
type Fsdev struct {
	Name   string `json:"name"`
	Module string `json:"module_name"`
	Driver struct {
		RootPath string `json:"root_path"`
	} `json:"module_specific"`
}

// CreateFsdev makes a file system device of a directory as the process sees it.
// Exists: there is one of that name, of whatever directory. NoFile: there is no
// such directory. A root that is a file, or that another device has, is
// accepted.
func (c *Client) CreateFsdev(ctx context.Context, name, root string) error {
	params := struct {
		byName
		RootPath string `json:"root_path"`
	}{byName{name}, root}
	return c.Call(ctx, "fsdev_aio_create", params, nil)
}

// DeleteFsdev removes one. NotFound: there is none.
func (c *Client) DeleteFsdev(ctx context.Context, name string) error {
	return c.Do(ctx, "fsdev_aio_delete", byName{name})
}

// Fsdev returns one. NotFound: there is none. UnknownMethod: upstream releases
// cannot tell.
func (c *Client) Fsdev(ctx context.Context, name string) (Fsdev, error) {
	if name == "" { // which would be all
		return Fsdev{}, errs.Errorf(errs.Invalid, "fsdev_get_fsdevs: the device has no name")
	}
	all, err := c.fsdevs(ctx, byName{name})
	if err != nil {
		return Fsdev{}, err
	}
	for _, f := range all {
		if f.Name == name {
			return f, nil
		}
	}
	return Fsdev{}, &Error{Method: "fsdev_get_fsdevs", Message: "there is no device " + name, means: []Meaning{NotFound}}
}

// Fsdevs returns all. UnknownMethod: upstream releases cannot tell.
func (c *Client) Fsdevs(ctx context.Context) ([]Fsdev, error) { return c.fsdevs(ctx, nil) }

// fsdevs reads a list, or the single object that comes when a name is given.
func (c *Client) fsdevs(ctx context.Context, params any) ([]Fsdev, error) {
	var raw json.RawMessage
	if err := c.Call(ctx, "fsdev_get_fsdevs", params, &raw); err != nil {
		return nil, err
	}
	all, err := oneOrMany[Fsdev](raw)
	if err != nil {
		return nil, errs.Errorf(errs.Internal, "fsdev_get_fsdevs: the process answered what cannot be read: %w", err)
	}
	return all, nil
}
