package loop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
)

// maxReadAhead is 1 GiB, in KiB; a larger value is probably in the wrong unit.
const maxReadAhead = 1 << 20

func (k kernel) setReadAhead(ctx context.Context, number, kib int) error {
	return k.writeQueue(ctx, number, "read_ahead_kb", strconv.Itoa(kib))
}

// setDiscard restores the read-ahead, which kernels raise to the default with
// every change of a limit.
func (k kernel) setDiscard(ctx context.Context, number int, on bool) error {
	now, err := k.discards(number)
	if err != nil || now == on {
		return err
	}
	readAhead, err := k.readQueue(number, "read_ahead_kb")
	if err != nil {
		return err
	}
	if err := k.limitDiscard(ctx, number, on); err != nil {
		return err
	}
	return k.writeQueue(ctx, number, "read_ahead_kb", strconv.FormatUint(readAhead, 10))
}

// discards is also true if the backing file does not support discards.
func (k kernel) discards(number int) (bool, error) {
	able, err := k.readQueue(number, "discard_max_hw_bytes")
	if err != nil {
		return false, err
	}
	allowed, err := k.readQueue(number, "discard_max_bytes")
	return allowed != 0 || able == 0, err
}

// discardUnit is a multiple of all discard granularities; the kernel rejects
// other limits.
const discardUnit = 1 << 20

// limitDiscard sets zero or the driver's maximum. Linux 6.18, for example,
// loses the granularity while discards are disabled, and accepts only zero
// until the number is recreated: ErrReattach.
func (k kernel) limitDiscard(ctx context.Context, number int, on bool) error {
	if !on {
		return k.writeQueue(ctx, number, "discard_max_bytes", "0")
	}
	most, err := k.readQueue(number, "discard_max_hw_bytes")
	if err != nil {
		return err
	}
	if most > discardUnit {
		most -= most % discardUnit
	}
	err = k.writeQueue(ctx, number, "discard_max_bytes", strconv.FormatUint(most, 10))
	if errors.Is(err, unix.EINVAL) {
		return errs.Errorf(errs.Precondition, "%w: %w", ErrReattach, err)
	}
	return err
}

func (k kernel) readQueue(number int, attribute string) (uint64, error) {
	text, err := os.ReadFile(k.block(number, "queue", attribute))
	if err != nil {
		return 0, err
	}
	value, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("queue/%s holds %q, want a number", attribute, text)
	}
	return value, nil
}

// writeQueue waits for the I/O of the device.
func (k kernel) writeQueue(ctx context.Context, number int, attribute, value string) error {
	if err := kernelcall.Write(ctx, k.block(number, "queue", attribute), value, kernelcall.Key{}); err != nil {
		return fmt.Errorf("set queue/%s to %s: %w", attribute, value, err)
	}
	return nil
}
