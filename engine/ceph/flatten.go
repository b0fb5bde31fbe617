//go:build ceph

package ceph

import (
	"encoding/json"
	"errors"

	"github.com/ceph/go-ceph/rbd"

	"github.com/cleatproject/cleat/errs"
)

// depthLimits of chains of clones, of which the kernel's client reads at most
// 16. Longer chains than soft are flattened by the cluster's manager in the
// background; a clone of a chain of length hard has to wait for that.
type depthLimits struct{ soft, hard int }

func defaultDepths() depthLimits { return depthLimits{soft: 4, hard: 12} }

// depth returns the number of parents of an image.
func (e *Engine) depth(i *image) (n int, err error) {
	for parent := i.parent; parent != nil; n++ {
		p, err := e.poolOfParent(parent, "image "+i.name)
		if err != nil {
			return n, err
		}
		if p == nil { // its own parents are unknown
			return n + 1, nil
		}
		r, err := rbd.OpenImageByIdReadOnly(p.io, parent.Image.ImageID, rbd.NoSnapshot)
		if err != nil {
			return n, explain(err, "open the parent %s of image %s", parent.Image.ImageID, i.name)
		}
		parent, err = r.GetParent()
		if closing := r.Close(); err == nil {
			err = closing
		}
		if is(err, notFound) {
			return n + 1, nil
		}
		if err != nil {
			return n, explain(err, "read the parent of image %s", i.name)
		}
	}
	return n, nil
}

// poolOfParent returns the pool with a parent of an object; nil if it is a foreign one,
// or another namespace.
func (e *Engine) poolOfParent(parent *rbd.ParentInfo, object string) (*pool, error) {
	p, err := e.poolOf(int64(parent.Image.PoolID), "a parent of "+object)
	switch {
	case errors.Is(err, errs.Precondition):
		return nil, nil
	case err == nil && parent.Image.PoolNamespace != p.namespace:
		return nil, nil
	}
	return p, err
}

// checkDepth refuses a clone whose chain would be too long.
func (b *build) checkDepth(source *pool) error {
	i, err := source.inspectID(b.from.At.image)
	if err != nil {
		return err
	}
	n, err := b.depth(i)
	if err != nil || n < b.depths.hard {
		return err
	}
	if i, err = source.inspect(imageName(b.from.At.hash)); err != nil || i.id != b.from.At.image {
		i = &image{pool: source, name: b.from.At.deleted}
	}
	if err := b.flatten(i); err != nil {
		return err
	}
	return errs.Errorf(errs.Busy, "%s is a clone of a clone, %d times, and nodes can read 16 at most; its data is being copied, so that a later attempt succeeds", b.from, n)
}

// limitDepth has a volume at the end of a long chain flattened. An error does
// no harm but to later clones, which try it again.
func (e *Engine) limitDepth(i *image) {
	n, err := e.depth(i)
	if err == nil && n > e.depths.soft {
		err = e.flatten(i)
	}
	if err != nil {
		e.logger.Warn("flatten failed", "volume", i.volumeID().String(), "err", err)
	}
}

// imageSpec names an image for the manager.
func (i *image) spec() string {
	if i.pool.namespace == "" {
		return i.pool.name + "/" + i.name
	}
	return i.pool.name + "/" + i.pool.namespace + "/" + i.name
}

// flatten queues a task of the manager, which survives this process; a repeat
// returns the same task.
func (e *Engine) flatten(i *image) error {
	_, err := e.task(map[string]string{"prefix": "rbd task add flatten", "image_spec": i.spec()})
	return err
}

type task struct {
	ID   string
	Refs struct {
		Pool      string `json:"pool_name"`
		Namespace string `json:"pool_namespace"`
		Image     string `json:"image_name"`
	}
}

// cancelTasks ends tasks of the manager on an image, which would hold it open.
// It reports whether there were any.
func (e *Engine) cancelTasks(i *image) (any bool, err error) {
	out, err := e.task(map[string]string{"prefix": "rbd task list"})
	if err != nil {
		return false, err
	}
	var tasks []task
	if err := json.Unmarshal(out, &tasks); err != nil {
		return false, errs.Errorf(errs.Internal, "the list of RBD tasks is not JSON: %w", err)
	}
	for _, t := range tasks {
		if t.Refs.Pool != i.pool.name || t.Refs.Namespace != i.pool.namespace || t.Refs.Image != i.name {
			continue
		}
		any = true
		if _, err := e.task(map[string]string{"prefix": "rbd task cancel", "task_id": t.ID}); ignoreMissing(err) != nil {
			return any, err
		}
	}
	return any, nil
}

func (e *Engine) task(command map[string]string) ([]byte, error) {
	text, err := json.Marshal(command)
	if err != nil {
		return nil, err
	}
	return e.mgrCommand(text)
}
