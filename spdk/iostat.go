package spdk

import (
	"context"

	"github.com/cleatproject/cleat/errs"
)

// IOStat is what a bdev did since it was made. Latencies are in ticks.
type IOStat struct {
	Name              string `json:"name"`
	BytesRead         uint64 `json:"bytes_read"`
	ReadOps           uint64 `json:"num_read_ops"`
	BytesWritten      uint64 `json:"bytes_written"`
	WriteOps          uint64 `json:"num_write_ops"`
	BytesUnmapped     uint64 `json:"bytes_unmapped"`
	UnmapOps          uint64 `json:"num_unmap_ops"`
	ReadLatencyTicks  uint64 `json:"read_latency_ticks"`
	WriteLatencyTicks uint64 `json:"write_latency_ticks"`
	TickRate          uint64 `json:"-"` // ticks per second
}

// IOStat returns the figures of one bdev. NotFound: it is not there.
func (c *Client) IOStat(ctx context.Context, name string) (IOStat, error) {
	if name == "" { // which would be all
		return IOStat{}, errs.Errorf(errs.Invalid, "bdev_get_iostat: the bdev has no name")
	}
	var result struct {
		TickRate uint64   `json:"tick_rate"`
		Bdevs    []IOStat `json:"bdevs"`
	}
	if err := c.Call(ctx, "bdev_get_iostat", byName{name}, &result); err != nil {
		return IOStat{}, err
	}
	if len(result.Bdevs) != 1 {
		return IOStat{}, errs.Errorf(errs.Internal, "bdev_get_iostat: there are figures of %d bdevs for %s, not one", len(result.Bdevs), name)
	}
	s := result.Bdevs[0]
	s.TickRate = result.TickRate
	return s, nil
}
