package spdk

import (
	"context"
	"errors"
)

// RBD is a bdev on an RBD image.
type RBD struct {
	Name      string `json:"name"`
	Pool      string `json:"pool_name"`
	Namespace string `json:"namespace_name,omitempty"`
	Image     string `json:"rbd_name"`
	BlockSize int    `json:"block_size"` // bytes
	ReadOnly  bool   `json:"read_only,omitempty"`
	// Cluster was given to RegisterRBDCluster; alternatively User, with the
	// process's default configuration and keyring.
	Cluster string `json:"cluster_name,omitempty"`
	User    string `json:"user_id,omitempty"`
}

// CreateRBD creates an RBD bdev. Exists: a bdev of that name exists.
func (c *Client) CreateRBD(ctx context.Context, r RBD) error {
	return c.Call(ctx, "bdev_rbd_create", r, nil)
}

// DeleteRBD deletes an RBD bdev. NotFound: no such bdev.
func (c *Client) DeleteRBD(ctx context.Context, name string) error {
	return c.Do(ctx, "bdev_rbd_delete", byName{name})
}

// RBDCluster is a shared connection to Ceph. Keys are passed in files only;
// SPDK would also accept them as parameters.
type RBDCluster struct {
	Name       string            `json:"name"`
	User       string            `json:"user_id,omitempty"`
	Config     map[string]string `json:"config_param,omitempty"` // such as mon_host
	ConfigFile string            `json:"config_file,omitempty"`
	KeyFile    string            `json:"key_file,omitempty"`
}

// HasRBDCluster is needed because errors of register and unregister calls do
// not distinguish their reasons.
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

// UnregisterRBDCluster unregisters a cluster that no bdev uses.
func (c *Client) UnregisterRBDCluster(ctx context.Context, name string) error {
	return c.Do(ctx, "bdev_rbd_unregister_cluster", byName{name})
}
