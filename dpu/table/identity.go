package table

import (
	"context"

	"github.com/cleatproject/cleat/internal/store"
)

func identitiesBucket() store.Bucket[string] { return store.Bucket[string]{Name: "identities"} }

// Identity returns the UUID of the volume's last namespace, even after its
// device was deleted; "": unknown.
func (t *Table) Identity(volumeID string) string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.identities[volumeID]
}

// ForgetIdentity removes the identity of a deleted volume.
func (t *Table) ForgetIdentity(ctx context.Context, volumeID string) error {
	if err := t.begin(ctx); err != nil {
		return err
	}
	defer t.end()
	if t.Identity(volumeID) == "" {
		return nil
	}
	if err := t.store.Update(ctx, func(tx *store.Tx) error { return identitiesBucket().Delete(tx, volumeID) }); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.identities, volumeID)
	return nil
}

func (d Device) identity() string {
	if d.Phase != Ready {
		return ""
	}
	return d.Namespace.UUID
}
