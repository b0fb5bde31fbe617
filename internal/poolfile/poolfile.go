// Package poolfile is shared by a pool's engine and the attachers of its
// volumes: names in the pool directory, and extended attributes of a volume's
// file, which the engine writes and an attacher reads, possibly in another
// process.
package poolfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/xattr"
)

// Names in a pool directory.
const (
	Identity = "pool.json"
	Volumes  = "volumes" // files named by volume ID
)

// Pool is the content of pool.json.
type Pool struct {
	Version int    `json:"version"`
	UUID    string `json:"uuid"`
}

const maxIdentity = 4096 // bytes of pool.json

func ReadPool(r io.Reader) (p Pool, err error) {
	data, err := io.ReadAll(io.LimitReader(r, maxIdentity+1))
	if err == nil && len(data) > maxIdentity {
		err = fmt.Errorf("more than %d bytes", maxIdentity)
	}
	if err == nil {
		err = json.Unmarshal(data, &p)
	}
	if err != nil {
		return p, errs.Errorf(errs.Precondition, "%s cannot be read: %w", Identity, err)
	}
	return p, nil
}

// fullThreshold is the free space below which a failure is attributed to a full
// pool.
const fullThreshold = 4 << 20

// ExplainFull adds to an internal error that the pool is full. Tools such as
// mkfs and the kernel's mounts report only a failure of thin volumes then.
func ExplainFull(pool string, err error) error {
	if err == nil || errs.KindOf(err) != errs.Internal {
		return err
	}
	var st unix.Statfs_t
	if unix.Statfs(pool, &st) != nil {
		return err
	}
	free := int64(st.Bavail) * st.Frsize
	if free >= fullThreshold {
		return err
	}
	return errs.Errorf(errs.Exhausted, "pool %s is full (%d bytes left): %w", pool, free, err)
}

// Values of Settings.Provisioning.
const (
	Thin  = "thin"
	Thick = "thick"
)

// Settings of an attached volume; empty fields are not set.
type Settings struct {
	Provisioning string `json:"provisioning"`
	TrimInterval string `json:"trimInterval,omitempty"` // a Go duration; "0" disables trimming
	ReadAhead    string `json:"readAheadKiB,omitempty"`
}

// Extended attributes of a volume's file.
const (
	provisioning = xattr.Prefix + "provisioning"
	trimInterval = xattr.Prefix + "trim-interval"
	readAhead    = xattr.Prefix + "read-ahead-kib"
	size         = xattr.Prefix + "size"
	copying      = xattr.Prefix + "copying"
	record       = xattr.Prefix + "record"
	parameters   = xattr.Prefix + "parameters"
)

// WriteSettings needs an fsync to be durable.
func WriteSettings(f *os.File, s Settings) error {
	return errors.Join(set(f, provisioning, s.Provisioning), set(f, trimInterval, s.TrimInterval), set(f, readAhead, s.ReadAhead))
}

// ReadSettings returns the settings as written; ok is false if no settings are set.
func ReadSettings(f *os.File) (s Settings, ok bool, err error) {
	r := reader{f: f}
	s = Settings{Provisioning: r.value(provisioning), TrimInterval: r.value(trimInterval), ReadAhead: r.value(readAhead)}
	return s, s.Provisioning != "", r.err
}

// smallestBlock is that of a file system whose blocks have space for all
// attributes: ext4 keeps those of a file in one block.
const smallestBlock = 4096

// WriteRecord writes the record of a new volume or snapshot, from which lost
// records can be made again. One that does not fit is left out.
func WriteRecord(f *os.File, r any) error { return setJSON(f, record, r) }

// WriteParameters is as WriteRecord, with the parameters that a new volume was
// requested with.
func WriteParameters(f *os.File, p map[string]string) error { return setJSON(f, parameters, p) }

func setJSON(f *os.File, name string, value any) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil || st.Bsize < smallestBlock {
		return err
	}
	text, err := json.Marshal(value)
	if err != nil || len(text) > xattr.MaxValue {
		return err
	}
	return set(f, name, string(text))
}

// HasRecord reports whether a record was written.
func HasRecord(f *os.File) (bool, error) {
	_, ok, err := xattr.Get(f, record)
	return ok, err
}

// ReadRecord reads what WriteRecord wrote; ok is false if it is missing.
func ReadRecord(f *os.File, r any) (ok bool, err error) { return getJSON(f, record, r) }

// ReadParameters reads what WriteParameters wrote; ok is false if they are missing.
func ReadParameters(f *os.File) (p map[string]string, ok bool, err error) {
	ok, err = getJSON(f, parameters, &p)
	return p, ok, err
}

func getJSON(f *os.File, name string, value any) (ok bool, err error) {
	text, ok, err := xattr.Get(f, name)
	if err != nil || !ok {
		return false, err
	}
	return json.Unmarshal([]byte(text), value) == nil, nil
}

// WriteSize writes the recorded size of a volume; fsync makes it durable.
func WriteSize(f *os.File, bytes int64) error { return set(f, size, strconv.FormatInt(bytes, 10)) }

// WriteReaders writes the IDs of the copies that read a volume's file, which is
// neither attached nor deleted meanwhile; fsync makes them durable. Busy: too
// many copies.
func WriteReaders(f *os.File, readers []string) error {
	value := strings.Join(readers, ",")
	if len(value) > xattr.MaxValue {
		return errs.Errorf(errs.Busy, "%s already has %d copies in progress; retry after some of them are complete", f.Name(), len(readers)-1)
	}
	return set(f, copying, value)
}

func set(f *os.File, name, value string) error {
	if value == "" {
		return xattr.Remove(f, name)
	}
	return xattr.Set(f, name, value)
}

// Readers returns the IDs of the copies that read a volume's file.
func Readers(f *os.File) ([]string, error) {
	value, _, err := xattr.Get(f, copying)
	if err != nil || value == "" {
		return nil, err
	}
	return strings.Split(value, ","), nil
}

// Attributes are the extended attributes of a volume's file.
type Attributes struct {
	Thick        bool          // all blocks stay allocated
	TrimInterval time.Duration // 0: never
	ReadAheadKiB int           // -1: the kernel's default
	Size         int64         // minimum in bytes; 0: unknown
	Readers      []string      // copies that read the file
}

// Read returns the attributes, all unset on a file system without extended
// attributes.
func Read(f *os.File) (a Attributes, err error) {
	a.ReadAheadKiB = -1
	if a.Readers, err = Readers(f); errors.Is(err, xattr.ErrUnsupported) {
		return a, nil
	}
	r := reader{f: f, err: err}
	a.Thick = r.value(provisioning) == Thick
	if text := r.value(trimInterval); text != "" {
		d, err := time.ParseDuration(text)
		r.check(err == nil && d >= 0, trimInterval, text, "a duration such as 24h or 0")
		a.TrimInterval = d
	}
	if text := r.value(readAhead); text != "" {
		n, err := strconv.Atoi(text)
		r.check(err == nil && n >= 0, readAhead, text, "a number of KiB")
		a.ReadAheadKiB = n
	}
	if text := r.value(size); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		r.check(err == nil && n >= 0, size, text, "a number of bytes")
		a.Size = n
	}
	return a, r.err
}

type reader struct {
	f   *os.File
	err error
}

func (r *reader) value(name string) string {
	if r.err != nil {
		return ""
	}
	value, _, err := xattr.Get(r.f, name)
	r.err = err
	return value
}

func (r *reader) check(ok bool, name, text, right string) {
	if r.err == nil && !ok {
		r.err = errs.Errorf(errs.Internal, "attribute %s of %s is %q, not %s", name, r.f.Name(), text, right)
	}
}
