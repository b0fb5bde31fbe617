package spdk

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"time"

	"github.com/cleatproject/cleat/errs"
)

// Bdev is a block device of the process.
type Bdev struct {
	Name        string   `json:"name"`
	Aliases     []string `json:"aliases"`
	ProductName string   `json:"product_name"`
	UUID        string   `json:"uuid"`       // of an NVMe bdev: that of the target's namespace
	BlockSize   int64    `json:"block_size"` // bytes
	NumBlocks   int64    `json:"num_blocks"`
	Claimed     bool     `json:"claimed"`
	SupportedIO struct {
		Unmap bool `json:"unmap"`
	} `json:"supported_io_types"`
	Driver Driver `json:"driver_specific"`
}

// Size returns the size in bytes.
func (b Bdev) Size() int64 { return b.BlockSize * b.NumBlocks }

// Driver describes the storage of a bdev. At most one field is set.
type Driver struct {
	NVMe NVMePaths   `json:"nvme"`
	AIO  *AIODriver  `json:"aio"`
	RBD  *RBDDriver  `json:"rbd"`
	Lvol *LvolDriver `json:"lvol"`
}

// NVMePaths are the paths of an NVMe bdev.
type NVMePaths []NVMePath

// NVMePath is a path to a namespace.
type NVMePath struct {
	Address    NVMeAddress `json:"trid"`
	Controller struct {
		ControllerID int    `json:"cntlid"`
		Model        string `json:"model_number"`
		Serial       string `json:"serial_number"`
		SubNQN       string `json:"subnqn"`
	} `json:"ctrlr_data"`
	Namespace struct {
		ID uint32 `json:"id"`
	} `json:"ns_data"`
}

// UnmarshalJSON accepts a list, or the single object of earlier releases.
func (p *NVMePaths) UnmarshalJSON(raw []byte) error {
	list, err := oneOrMany[NVMePath](raw)
	*p = list
	return err
}

// AIODriver describes an AIO bdev.
type AIODriver struct {
	Filename string `json:"filename"`
	ReadOnly bool   `json:"readonly"`
}

// RBDDriver describes an RBD bdev.
type RBDDriver struct {
	Pool      string `json:"pool_name"`
	Namespace string `json:"namespace_name"`
	Image     string `json:"rbd_name"`
}

// Bdev returns the bdev with a name, alias or UUID. NotFound: no such bdev.
func (c *Client) Bdev(ctx context.Context, name string) (Bdev, error) {
	return c.bdev(ctx, name, 0)
}

// LoadedBdev is Bdev for callers that act on NotFound. A process that has just
// started shows an lvol store before it has opened all of its lvols: LoadedBdev
// waits for them.
func (c *Client) LoadedBdev(ctx context.Context, name string) (Bdev, error) {
	b, err := c.Bdev(ctx, name)
	if !errors.Is(err, NotFound) {
		return b, err
	}
	if err := c.WaitForExamine(ctx); err != nil {
		return Bdev{}, err
	}
	return c.Bdev(ctx, name)
}

// WaitForExamine waits until the process has examined all bdevs, and has opened
// the lvols that it found.
func (c *Client) WaitForExamine(ctx context.Context) error {
	return c.Do(ctx, "bdev_wait_for_examine", nil)
}

// AwaitBdev waits until a bdev exists, in whole milliseconds. NotFound: the
// bdev did not appear. The result is Unanswered if the context ends before the
// wait.
func (c *Client) AwaitBdev(ctx context.Context, name string, wait time.Duration) (Bdev, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, wait+c.config.Timeout)
		defer cancel()
	}
	return c.bdev(ctx, name, max(1, wait.Milliseconds()))
}

func (c *Client) bdev(ctx context.Context, name string, wait int64) (Bdev, error) {
	if name == "" { // an empty name would return all bdevs
		return Bdev{}, errs.Errorf(errs.Invalid, "bdev_get_bdevs: empty bdev name")
	}
	params := struct {
		Name    string `json:"name"`
		Timeout int64  `json:"timeout,omitempty"`
	}{name, min(wait, math.MaxInt32)}
	var all []Bdev
	if err := c.Call(ctx, "bdev_get_bdevs", params, &all); err != nil {
		return Bdev{}, err
	}
	if len(all) != 1 {
		return Bdev{}, errs.Errorf(errs.Internal, "bdev_get_bdevs: got %d bdevs named %s, want 1", len(all), name)
	}
	return all[0], nil
}

// Bdevs returns all bdevs: megabytes of JSON for thousands.
func (c *Client) Bdevs(ctx context.Context) ([]Bdev, error) {
	var all []Bdev
	err := c.Call(ctx, "bdev_get_bdevs", nil, &all)
	return all, err
}

// Do makes a call without a result. Some releases return false instead of an
// error.
func (c *Client) Do(ctx context.Context, method string, params any) error {
	var raw json.RawMessage
	if err := c.Call(ctx, method, params, &raw); err != nil {
		return err
	}
	if bytes.Equal(raw, []byte("false")) {
		return &Error{Method: method, Message: "the process returned false"}
	}
	return nil
}

type byName struct {
	Name string `json:"name"`
}

// oneOrMany decodes a list or a single element.
func oneOrMany[T any](raw []byte) ([]T, error) {
	if raw = bytes.TrimSpace(raw); len(raw) > 0 && raw[0] == '{' {
		var one T
		if err := json.Unmarshal(raw, &one); err != nil {
			return nil, err
		}
		return []T{one}, nil
	}
	var many []T
	err := json.Unmarshal(raw, &many)
	return many, err
}

// AIO is a bdev on a file or block device.
type AIO struct {
	Name      string `json:"name"`
	Filename  string `json:"filename"`             // in the mount namespace of the process
	BlockSize int    `json:"block_size,omitempty"` // bytes; required for a file
	ReadOnly  bool   `json:"readonly,omitempty"`
	Fallocate bool   `json:"fallocate,omitempty"` // the file or device can unmap
}

// CreateAIO creates an AIO bdev. Exists: the name is used. NoFile: the file
// does not exist. SPDK accepts a file that another bdev uses.
func (c *Client) CreateAIO(ctx context.Context, a AIO) error {
	return c.Call(ctx, "bdev_aio_create", a, nil)
}

// DeleteAIO removes an AIO bdev. NotFound: no such bdev, or of another kind.
func (c *Client) DeleteAIO(ctx context.Context, name string) error {
	return c.Do(ctx, "bdev_aio_delete", byName{name})
}
