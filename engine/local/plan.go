package local

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/engine/newvolume"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/volume"
)

// plan is a valid create request.
type plan struct {
	volume.CreateRequest
	settings settings
}

func planCreate(req volume.CreateRequest) (plan, error) {
	if err := newvolume.Check(req); err != nil {
		return plan{}, err
	}
	s, err := parseSettings(settings{Provisioning: thin}, req.Parameters)
	if err != nil {
		return plan{}, err
	}
	req.Parameters = maps.Clone(req.Parameters)
	return plan{CreateRequest: req, settings: s}, nil
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

// matches returns Exists with the difference unless the request would have
// created this volume.
func (p plan) matches(id volume.ID, r volumeRecord) error {
	differs := func(format string, args ...any) error {
		return errs.Errorf(errs.Exists, "volume %s already has the name %q, "+format, append([]any{id, p.Name}, args...)...)
	}
	switch {
	case !p.Size.Admits(r.Size):
		return differs("with %d bytes; the request is for %s", r.Size, p.Size)
	case p.Content != r.Content:
		return differs("with content %s; the request is for %s", r.Content, p.Content)
	case p.FSType != "" && p.FSType != r.FSType:
		return differs("with file system %s; the request is for %s", r.FSType, p.FSType)
	case p.Source != r.source():
		return differs("%s; the request is for one %s", describeSource(r.source()), describeSource(p.Source))
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
	return "created without a source"
}

func describeParameters(m map[string]string) string {
	if len(m) == 0 {
		return "no parameters"
	}
	var all []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		all = append(all, fmt.Sprintf("%s=%q", key, m[key]))
	}
	return "parameters " + strings.Join(all, ", ")
}

type origin struct {
	volume   volume.ID
	snapshot volume.SnapshotID
	size     int64
	content  volume.Content
	fsType   string
	promised int64  // additional space for the thick source
	intent   string // key of the freeze record
}

func (o origin) String() string {
	if o.volume != "" {
		return "volume " + string(o.volume)
	}
	return "snapshot " + string(o.snapshot)
}

func (o origin) file() string {
	if o.volume != "" {
		return volumesDir + "/" + string(o.volume)
	}
	return snapshotsDir + "/" + string(o.snapshot)
}

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

// setFilesystem sets the file system of the volume: that of the source, or the
// requested one. Any source can be used raw, but a file system cannot be
// created over a source.
func (p *plan) setFilesystem(from *origin) error {
	switch {
	case p.Content == volume.Raw:
	case from == nil:
		if p.FSType == "" {
			p.FSType = string(mkfs.Ext4)
		}
	case from.content != volume.Filesystem:
		return errs.Errorf(errs.Invalid, "%s has no file system, so only a block volume can be created from it", from)
	case p.FSType == "":
		p.FSType = from.fsType
	case p.FSType != from.fsType:
		return errs.Errorf(errs.Invalid, "%s has file system %s, so a volume created from it cannot have %s; request %s, or no file system", from, from.fsType, p.FSType, from.fsType)
	}
	return nil
}

// chooseSize chooses the size; largest is the maximum size of a file in the
// pool. A copy is never smaller than its source, and has the size of its source
// if the request allows.
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
		return 0, errs.Errorf(errs.OutOfRange, "a volume of %d bytes is not possible: files in this pool have at most %d bytes", size, largest)
	}
	return size, nil
}
