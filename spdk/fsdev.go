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
	var raw json.RawMessage
	if err := c.Call(ctx, "fsdev_get_fsdevs", byName{name}, &raw); err != nil {
		return Fsdev{}, err
	}
	// The answer is a list, or the single object.
	all, err := oneOrMany[Fsdev](raw)
	if err != nil {
		return Fsdev{}, errs.Errorf(errs.Internal, "fsdev_get_fsdevs: cannot parse the answer: %w", err)
	}
	for _, f := range all {
		if f.Name == name {
			return f, nil
		}
	}
	return Fsdev{}, &Error{Method: "fsdev_get_fsdevs", Message: "there is no device " + name, means: []Meaning{NotFound}}
}
