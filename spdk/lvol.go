package spdk

import (
	"context"

	"github.com/cleatproject/cleat/errs"
)

// LvolStore is a store of lvols on a bdev.
type LvolStore struct {
	UUID          string `json:"uuid"`
	Name          string `json:"name"`
	BaseBdev      string `json:"base_bdev"`
	ClusterSize   int64  `json:"cluster_size"` // bytes
	TotalClusters int64  `json:"total_data_clusters"`
	FreeClusters  int64  `json:"free_clusters"`
}

// Size returns the size of the store in bytes.
func (s LvolStore) Size() int64 { return s.TotalClusters * s.ClusterSize }

// Free returns the bytes that no lvol has allocated.
func (s LvolStore) Free() int64 { return s.FreeClusters * s.ClusterSize }

// LvolDriver describes an lvol. A thin lvol has no clusters of its own until it
// is written.
type LvolDriver struct {
	StoreUUID         string   `json:"lvol_store_uuid"`
	BaseBdev          string   `json:"base_bdev"` // of the store
	Thin              bool     `json:"thin_provision"`
	AllocatedClusters int64    `json:"num_allocated_clusters"`
	Snapshot          bool     `json:"snapshot"`
	Clone             bool     `json:"clone"`
	BaseSnapshot      string   `json:"base_snapshot"` // name of the snapshot of a clone
	Clones            []string `json:"clones"`        // names of the clones of a snapshot
}

// LvolStores returns the stores of all bdevs of the process.
func (c *Client) LvolStores(ctx context.Context) ([]LvolStore, error) {
	var all []LvolStore
	err := c.Call(ctx, "bdev_lvol_get_lvstores", nil, &all)
	return all, err
}

// LvolStore returns a store. NotFound: no such store, perhaps because its bdev
// is missing.
func (c *Client) LvolStore(ctx context.Context, uuid string) (LvolStore, error) {
	params := struct {
		UUID string `json:"uuid"`
	}{uuid}
	var all []LvolStore
	if err := c.Call(ctx, "bdev_lvol_get_lvstores", params, &all); err != nil {
		return LvolStore{}, err
	}
	if len(all) != 1 {
		return LvolStore{}, errs.Errorf(errs.Internal, "bdev_lvol_get_lvstores: got %d lvol stores with UUID %s, want 1", len(all), uuid)
	}
	return all[0], nil
}

// LvolCreate describes a new lvol. SPDK accepts a thin one that is larger than
// its store, and one of size 0.
type LvolCreate struct {
	StoreUUID string `json:"uuid"`
	Name      string `json:"lvol_name"` // 1 to 63 bytes
	SizeMiB   int64  `json:"size_in_mib"`
	Thin      bool   `json:"thin_provision"`
	// ClearMethod of the clusters when they are freed: none, unmap, write_zeroes.
	// unmap does nothing where the base bdev has none.
	ClearMethod string `json:"clear_method,omitempty"`
}

// CreateLvol creates an lvol and returns its UUID, which is the name of its
// bdev. Exists: the store has an lvol of that name. NotFound: no such store.
// NoSpace: a thick one does not fit.
func (c *Client) CreateLvol(ctx context.Context, l LvolCreate) (uuid string, err error) {
	err = c.Call(ctx, "bdev_lvol_create", l, &uuid)
	return uuid, err
}

// SnapshotLvol creates a snapshot in the same store, which takes over the
// clusters of the lvol, and returns its UUID. Exists: the name is used.
// NotFound: no such lvol. BadParams: it is a snapshot.
func (c *Client) SnapshotLvol(ctx context.Context, lvol, name string) (uuid string, err error) {
	params := struct {
		Lvol string `json:"lvol_name"`
		Name string `json:"snapshot_name"`
	}{lvol, name}
	err = c.Call(ctx, "bdev_lvol_snapshot", params, &uuid)
	return uuid, err
}

// CloneLvol creates a thin clone of a snapshot, in the same store and with its
// size, and returns its UUID. Exists: the name is used. NotFound: no such
// snapshot.
func (c *Client) CloneLvol(ctx context.Context, snapshot, name string) (uuid string, err error) {
	params := struct {
		Snapshot string `json:"snapshot_name"`
		Name     string `json:"clone_name"`
	}{snapshot, name}
	err = c.Call(ctx, "bdev_lvol_clone", params, &uuid)
	return uuid, err
}

// ResizeLvol changes the size; SPDK also shrinks, and loses what is beyond.
// NotFound: no such lvol. NoSpace: a thick one does not fit.
func (c *Client) ResizeLvol(ctx context.Context, lvol string, sizeMiB int64) error {
	params := struct {
		byName
		Size int64 `json:"size_in_mib"`
	}{byName{lvol}, sizeMiB}
	return c.Do(ctx, "bdev_lvol_resize", params)
}

// StartInflate starts to allocate all clusters of a thin lvol. A cluster of a
// parent is copied, one that is beyond the end of the parent is written with
// zeros (from 24.05 on), and one that the parent does not have keeps what a
// deleted lvol left in it. Allocated clusters are not written. The lvol is thick
// and has no parent when this is done; a process that ends does not continue.
func (c *Client) StartInflate(ctx context.Context, lvol string) error {
	return c.Start(ctx, "bdev_lvol_inflate", byName{lvol})
}

// InflateLvol waits until an lvol is thick on the disk: SPDK shows it as thick
// before. It answers at once for one that is. Busy: the lvol is being inflated.
func (c *Client) InflateLvol(ctx context.Context, lvol string) error {
	return c.Do(ctx, "bdev_lvol_inflate", byName{lvol})
}

// DeleteLvol deletes an lvol, also one that is exported. A snapshot with one
// clone is merged into it. NotFound: no such lvol. Denied: a snapshot with
// several clones.
func (c *Client) DeleteLvol(ctx context.Context, lvol string) error {
	return c.Do(ctx, "bdev_lvol_delete", byName{lvol})
}

// QoS limits a bdev; 0 is unlimited.
type QoS struct {
	IOPS        int64 `json:"rw_ios_per_sec"` // rounded up to thousands
	MBytes      int64 `json:"rw_mbytes_per_sec"`
	ReadMBytes  int64 `json:"r_mbytes_per_sec"`
	WriteMBytes int64 `json:"w_mbytes_per_sec"`
}

// SetQoS sets all limits of a bdev. It fails as Busy for a bdev that has limits
// and that no program has open. NotFound: no such bdev.
func (c *Client) SetQoS(ctx context.Context, bdev string, q QoS) error {
	params := struct {
		byName
		QoS
	}{byName{bdev}, q}
	return c.Do(ctx, "bdev_set_qos_limit", params)
}

// Lvol is an lvol in a list.
type Lvol struct {
	UUID     string `json:"uuid"`
	Name     string `json:"name"`
	Snapshot bool   `json:"is_snapshot"`
}

// Lvols returns the lvols of a store. NotFound: no such store.
func (c *Client) Lvols(ctx context.Context, storeUUID string) ([]Lvol, error) {
	params := struct {
		Store string `json:"lvs_uuid"`
	}{storeUUID}
	var all []Lvol
	err := c.Call(ctx, "bdev_lvol_get_lvols", params, &all)
	return all, err
}
