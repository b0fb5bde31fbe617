package source

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleatproject/cleat/sriov/nodestate"
)

// ErrOther: the object that a status is for is not there; another may have its
// name.
var ErrOther = errors.New("the node state is gone, or was made again")

// tries is how often a status is written while others write to the object.
const tries = 5

// UpdateStatus writes the status of the object with that uid; ErrOther if the
// object is gone or another one has its name. Other fields of the status stay.
func (c *Cluster) UpdateStatus(ctx context.Context, uid string, s nodestate.Status) error {
	body, err := statusPatch(uid, s)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.config.Within)
	defer cancel()
	for try := 1; ; try++ {
		err = c.client.Patch(types.MergePatchType).AbsPath(c.path(c.config.Node, "status")...).Body(body).Do(ctx).Error()
		if !apierrors.IsConflict(err) || try == tries {
			break
		}
		if other, look := c.replaced(ctx, uid); look == nil && other {
			return fmt.Errorf("write the status of %s with uid %s: %w", c, uid, ErrOther)
		}
	}
	switch {
	case err == nil:
		return nil
	case apierrors.IsNotFound(err):
		return fmt.Errorf("write the status of %s: %w: %w", c, ErrOther, err)
	}
	return fmt.Errorf("write the status of %s: %w", c, err)
}

// replaced reports whether the name is another object's.
func (c *Cluster) replaced(ctx context.Context, uid string) (bool, error) {
	body, err := c.client.Get().AbsPath(c.path(c.config.Node)...).Do(ctx).Raw()
	if err != nil {
		return apierrors.IsNotFound(err), err
	}
	u := object(body)
	return u.State.UID != uid, nil
}

// statusPatch writes every field that is ours, also those that are empty: a
// merge leaves alone what it is not told of.
func statusPatch(uid string, s nodestate.Status) ([]byte, error) {
	interfaces := s.Interfaces
	if interfaces == nil {
		interfaces = []nodestate.FoundInterface{}
	}
	return json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": uid}, // a precondition
		"status": map[string]any{
			"interfaces": interfaces, "syncStatus": s.SyncStatus, "lastSyncError": s.LastSyncError,
		},
	})
}

// decode keeps numbers as they were written.
func decode(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return d.Decode(into)
}
