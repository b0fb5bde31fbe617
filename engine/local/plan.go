package local

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/volume"
)

// plan is a request to create that is known to make sense.
type plan struct {
	volume.CreateRequest
	settings settings
}

// planCreate checks a request as far as that can be done without looking at
// the pool.
func planCreate(req volume.CreateRequest) (plan, error) {
	if err := checkName(req.Name); err != nil {
		return plan{}, err
	}
	if err := checkSize(req.Size); err != nil {
		return plan{}, err
	}
	if req.Source.Volume != "" && req.Source.Snapshot != "" {
		return plan{}, errs.Errorf(errs.Invalid, "a volume has one source, not both volume %s and snapshot %s", req.Source.Volume, req.Source.Snapshot)
	}
	if err := checkContent(req.Content, req.FSType); err != nil {
		return plan{}, err
	}
	s, err := parseSettings(settings{Provisioning: thin}, req.Parameters)
	if err != nil {
		return plan{}, err
	}
	req.Parameters = maps.Clone(req.Parameters)
	return plan{CreateRequest: req, settings: s}, nil
}

func checkName(name string) error {
	if name == "" {
		return errs.Errorf(errs.Invalid, "the name is empty")
	}
	if len(name) > volume.MaxIDLength {
		return errs.Errorf(errs.Invalid, "the name is %d bytes long, at most %d are allowed", len(name), volume.MaxIDLength)
	}
	return nil
}

func checkSize(r volume.SizeRange) error {
	switch {
	case r.Required < 0 || r.Limit < 0:
		return errs.Errorf(errs.OutOfRange, "a size of %s is not possible: sizes are not negative", r)
	case r.Limit != 0 && r.Limit < r.Required:
		return errs.Errorf(errs.OutOfRange, "the limit of %d bytes is below the required size of %d bytes", r.Limit, r.Required)
	}
	return nil
}

func checkContent(c volume.Content, fsType string) error {
	switch c {
	case volume.Raw:
		if fsType != "" {
			return errs.Errorf(errs.Invalid, "a raw volume has no file system, yet %q is asked for", fsType)
		}
	case volume.Filesystem:
		if fsType != "" {
			_, err := mkfs.ParseType(fsType)
			return err
		}
	default:
		return errs.Errorf(errs.Invalid, "content %q cannot be asked for, only %q and %q", c, volume.Raw, volume.Filesystem)
	}
	return nil
}

func (p plan) locks() []string {
	keys := []string{"name:" + p.Name}
	if p.Source.Volume != "" {
		keys = append(keys, "vol:"+string(p.Source.Volume))
	}
	if p.Source.Snapshot != "" {
		keys = append(keys, "snap:"+string(p.Source.Snapshot))
	}
	return keys
}

// matches tells whether the request would have made this very volume; the
// error is Exists and says what differs.
func (p plan) matches(id volume.ID, r volumeRecord) error {
	differs := func(format string, args ...any) error {
		return errs.Errorf(errs.Exists, "volume %s has the name %q already, "+format, append([]any{id, p.Name}, args...)...)
	}
	switch {
	case !p.Size.Admits(r.Size):
		return differs("with %d bytes; the request asks for %s", r.Size, p.Size)
	case p.Content != r.Content:
		return differs("with content %s; the request asks for %s", r.Content, p.Content)
	case p.FSType != "" && p.FSType != r.FSType:
		return differs("with file system %s; the request asks for %s", r.FSType, p.FSType)
	case p.Source != r.source():
		return differs("%s; the request asks for one %s", describeSource(r.source()), describeSource(p.Source))
	case !maps.Equal(p.Parameters, r.Requested):
		return differs("with %s; the request has %s", describeParameters(r.Requested), describeParameters(p.Parameters))
	case p.Ephemeral != r.Ephemeral:
		return differs("and only one of the two is ephemeral")
	}
	return nil
}

func describeSource(s volume.Source) string {
	switch {
	case s.Volume != "":
		return "cloned from volume " + string(s.Volume)
	case s.Snapshot != "":
		return "restored from snapshot " + string(s.Snapshot)
	}
	return "made without a source"
}

func describeParameters(m map[string]string) string {
	if len(m) == 0 {
		return "no parameters"
	}
	var all []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		all = append(all, fmt.Sprintf("%s=%q", key, m[key]))
	}
	return "the parameters " + strings.Join(all, ", ")
}

// origin is what a new volume is copied from.
type origin struct {
	volume   volume.ID
	snapshot volume.SnapshotID
	size     int64
	content  volume.Content
	fsType   string
	promised int64  // room that a thick volume may need beside what shares its blocks
	intent   string // of the freeze that its cut took; to be forgotten with the commit
}

// String names the origin for a message.
func (o origin) String() string {
	if o.volume != "" {
		return "volume " + string(o.volume)
	}
	return "snapshot " + string(o.snapshot)
}

// file is the name of the origin in the pool.
func (o origin) file() string {
	if o.volume != "" {
		return volumesDir + "/" + string(o.volume)
	}
	return snapshotsDir + "/" + string(o.snapshot)
}

// originOf returns the source of a new volume, nil for an empty one.
func (e *Engine) originOf(ctx context.Context, s volume.Source) (*origin, error) {
	var o *origin
	switch {
	case s.Volume != "":
		r, err := e.readyVolume(ctx, s.Volume)
		if err != nil {
			return nil, err
		}
		o = &origin{volume: s.Volume, size: r.Size, content: r.Content, fsType: r.FSType, promised: r.Promised}
		if r.Settings.thick() {
			o.promised = r.Size
		}
	case s.Snapshot != "":
		r, err := e.readySnapshot(ctx, s.Snapshot)
		if err != nil {
			return nil, err
		}
		o = &origin{snapshot: s.Snapshot, size: r.Size, content: r.Content, fsType: r.FSType, promised: r.Promised}
	default:
		return nil, nil
	}
	if _, err := e.pool.inspect(o.file(), o.size); err != nil {
		return nil, fmt.Errorf("source of the new volume: %w", e.explain(err))
	}
	return o, nil
}

// adopt settles the file system: that of the source, or the one asked for.
// Bytes can always be had raw; a file system cannot be made over a source.
func (p *plan) adopt(from *origin) error {
	switch {
	case p.Content == volume.Raw:
	case from == nil:
		if p.FSType == "" {
			p.FSType = string(mkfs.Ext4)
		}
	case from.content != volume.Filesystem:
		return errs.Errorf(errs.Invalid, "%s has no file system, so only a block volume can be made from it", from)
	case p.FSType == "":
		p.FSType = from.fsType
	case p.FSType != from.fsType:
		return errs.Errorf(errs.Invalid, "%s has file system %s, so a volume made from it cannot have %s; ask for %s, or for no file system", from, from.fsType, p.FSType, from.fsType)
	}
	return nil
}

// chooseSize picks the size; largest is what a file in the pool can have. A
// copy is never smaller than its source: where the request allows it, it gets
// the size of the source.
func (p plan) chooseSize(from *origin, largest int64) (int64, error) {
	fallback, minimum := int64(defaultSize), minimumSize(mkfs.Type(p.FSType))
	if from != nil {
		fallback, minimum = from.size, from.size
		if p.Size.Limit != 0 && p.Size.Limit < from.size {
			return 0, errs.Errorf(errs.OutOfRange, "a size of %s is too small: the source, %s, has %d bytes", p.Size, from, from.size)
		}
	}
	size, err := p.Size.Choose(fallback, minimum, granule)
	if err != nil {
		return 0, err
	}
	if size > largest {
		return 0, errs.Errorf(errs.OutOfRange, "a volume of %d bytes is not possible: a file in this pool has at most %d bytes", size, largest)
	}
	return size, nil
}
