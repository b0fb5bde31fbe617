package spdk

import (
	"context"
	"errors"
)

// RBD is a bdev on an image of Ceph.
type RBD struct {
	Name      string `json:"name"`
	Pool      string `json:"pool_name"`
	Namespace string `json:"namespace_name,omitempty"`
	Image     string `json:"rbd_name"`
	BlockSize int    `json:"block_size"` // bytes
	ReadOnly  bool   `json:"read_only,omitempty"`
	// Cluster is a name that RegisterRBDCluster gave; or User, with the
	// configuration and the keyring that the process finds by itself.
	Cluster string `json:"cluster_name,omitempty"`
	User    string `json:"user_id,omitempty"`
}

// CreateRBD makes an RBD bdev. Exists: there is a bdev of that name.
func (c *Client) CreateRBD(ctx context.Context, r RBD) error {
	return c.Call(ctx, "bdev_rbd_create", r, nil)
}

// DeleteRBD removes one. NotFound: there is none.
func (c *Client) DeleteRBD(ctx context.Context, name string) error {
	return c.Do(ctx, "bdev_rbd_delete", byName{name})
}

// RBDCluster is a connection to Ceph that bdevs share. Keys stay in files: the
// process can be given them in parameters too, which is not offered here.
type RBDCluster struct {
	Name       string            `json:"name"`
	User       string            `json:"user_id,omitempty"`
	Config     map[string]string `json:"config_param,omitempty"` // as mon_host
	ConfigFile string            `json:"config_file,omitempty"`
	KeyFile    string            `json:"key_file,omitempty"`
}

// HasRBDCluster tells whether a cluster of that name is registered: the calls
// that register and unregister are refused in the same words, whatever is wrong.
func (c *Client) HasRBDCluster(ctx context.Context, name string) (bool, error) {
	err := c.Call(ctx, "bdev_rbd_get_clusters_info", byName{name}, nil)
	if errors.Is(err, NotFound) {
		return false, nil
	}
	return err == nil, err
}

// RegisterRBDCluster connects to a cluster.
func (c *Client) RegisterRBDCluster(ctx context.Context, r RBDCluster) error {
	return c.Call(ctx, "bdev_rbd_register_cluster", r, nil)
}

// UnregisterRBDCluster lets one go that no bdev uses.
func (c *Client) UnregisterRBDCluster(ctx context.Context, name string) error {
	return c.Do(ctx, "bdev_rbd_unregister_cluster", byName{name})
}
