package file

import (
	"context"
	"errors"
	"os"
	"strconv"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/linux/xattr"
)

// The attributes that an engine leaves on a file for those who attach it.
const (
	attrProvisioning = xattr.Prefix + "provisioning"   // thin or thick
	attrTrimInterval = xattr.Prefix + "trim-interval"  // a duration as in Go
	attrReadAhead    = xattr.Prefix + "read-ahead-kib" // a number
	attrSize         = xattr.Prefix + "size"           // of the volume in bytes
	attrCopying      = xattr.Prefix + "copying"        // what copies from the file just now
)

const thick = "thick"

type attributes struct {
	thick        bool
	trimInterval time.Duration
	readAheadKiB int   // -1: as the kernel has it
	size         int64 // 0: not known
	copying      string
}

func readAttributes(f *os.File) (attributes, error) {
	a := attributes{readAheadKiB: -1}
	values := map[string]string{}
	for _, name := range []string{attrProvisioning, attrTrimInterval, attrReadAhead, attrSize, attrCopying} {
		value, ok, err := xattr.Get(f, name)
		if errors.Is(err, xattr.ErrUnsupported) {
			return a, nil
		}
		if err != nil {
			return a, err
		}
		if ok {
			values[name] = value
		}
	}
	a.thick = values[attrProvisioning] == thick
	a.copying = values[attrCopying]
	var err error
	if text, ok := values[attrTrimInterval]; ok {
		if a.trimInterval, err = time.ParseDuration(text); err != nil || a.trimInterval < 0 {
			return a, errs.Errorf(errs.Internal, "attribute %s of %s is %q, not a duration such as 24h or 0", attrTrimInterval, f.Name(), text)
		}
	}
	if text, ok := values[attrReadAhead]; ok {
		if a.readAheadKiB, err = strconv.Atoi(text); err != nil || a.readAheadKiB < 0 {
			return a, errs.Errorf(errs.Internal, "attribute %s of %s is %q, not a number of KiB", attrReadAhead, f.Name(), text)
		}
	}
	if text, ok := values[attrSize]; ok {
		if a.size, err = strconv.ParseInt(text, 10, 64); err != nil || a.size < 0 {
			return a, errs.Errorf(errs.Internal, "attribute %s of %s is %q, not a number of bytes", attrSize, f.Name(), text)
		}
	}
	return a, nil
}

// checkSize refuses a file that has less than the size of its volume.
func (a attributes) checkSize(f *os.File) error {
	info, err := f.Stat()
	if err == nil && info.Size() < a.size {
		err = errs.Errorf(errs.Precondition, "%s was truncated to %d of %d bytes; put the whole file back, or delete the volume and restore it from a snapshot or a backup", f.Name(), info.Size(), a.size)
	}
	return err
}

// apply makes a device as the attributes want it. A kernel that brings discards
// back only to a device made anew is no reason to refuse the one there is.
func (a attributes) apply(ctx context.Context, d loop.Device) error {
	if err := loop.SetDiscard(ctx, d, !a.thick); err != nil && !errors.Is(err, loop.ErrReattach) {
		return err
	}
	if a.readAheadKiB < 0 {
		return nil
	}
	return loop.SetReadAhead(ctx, d, a.readAheadKiB)
}
