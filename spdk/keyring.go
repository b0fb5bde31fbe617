package spdk

import "context"

// AddKeyFile gives the process a key by the file that holds it: an absolute
// path that the process can see, its own, and nobody else's to read. Exists:
// there is a key of that name. Denied: the file is not as it should be.
func (c *Client) AddKeyFile(ctx context.Context, name, path string) error {
	params := struct {
		byName
		Path string `json:"path"`
	}{byName{name}, path}
	return c.Do(ctx, "keyring_file_add_key", params)
}

// RemoveKey takes a key of a file back. NotFound: there is none.
func (c *Client) RemoveKey(ctx context.Context, name string) error {
	return c.Do(ctx, "keyring_file_remove_key", byName{name})
}
