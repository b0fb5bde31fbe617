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

// CreateFsdev creates a device on a directory, in the mount namespace of the
// process. Exists: the name is used, possibly on another directory. NoFile: the
// directory does not exist. SPDK accepts a root that is a file, or that another
// device uses.
func (c *Client) CreateFsdev(ctx context.Context, name, root string) error {
	params := struct {
		byName
		RootPath string `json:"root_path"`
	}{byName{name}, root}
	return c.Call(ctx, "fsdev_aio_create", params, nil)
}

// DeleteFsdev deletes a device. NotFound: no such device.
func (c *Client) DeleteFsdev(ctx context.Context, name string) error {
	return c.Do(ctx, "fsdev_aio_delete", byName{name})
}

// Fsdev returns a device. NotFound: no such device. UnknownMethod: upstream
// releases lack the method.
func (c *Client) Fsdev(ctx context.Context, name string) (Fsdev, error) {
	if name == "" { // an empty name would return all devices
		return Fsdev{}, errs.Errorf(errs.Invalid, "fsdev_get_fsdevs: empty device name")
	}
	var raw json.RawMessage
	if err := c.Call(ctx, "fsdev_get_fsdevs", byName{name}, &raw); err != nil {
		return Fsdev{}, err
	}
	all, err := oneOrMany[Fsdev](raw)
	if err != nil {
		return Fsdev{}, errs.Errorf(errs.Internal, "fsdev_get_fsdevs: parse the response: %w", err)
	}
	for _, f := range all {
		if f.Name == name {
			return f, nil
		}
	}
	return Fsdev{}, &Error{Method: "fsdev_get_fsdevs", Message: "no device named " + name, means: []Meaning{NotFound}}
}
