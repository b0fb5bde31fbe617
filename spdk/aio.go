package spdk

import "context"

// AIO is a bdev on a file or block device of the machine.
type AIO struct {
	Name      string `json:"name"`
	Filename  string `json:"filename"`             // as the process sees it
	BlockSize int    `json:"block_size,omitempty"` // bytes; needed for a file
	ReadOnly  bool   `json:"readonly,omitempty"`
}

// CreateAIO makes an AIO bdev. Exists: there is a bdev of that name. NoFile:
// there is no such file. A file that another bdev is on is accepted.
func (c *Client) CreateAIO(ctx context.Context, a AIO) error {
	return c.Call(ctx, "bdev_aio_create", a, nil)
}

// DeleteAIO removes one. NotFound: there is none, or it is of another kind.
func (c *Client) DeleteAIO(ctx context.Context, name string) error {
	return c.Do(ctx, "bdev_aio_delete", byName{name})
}
