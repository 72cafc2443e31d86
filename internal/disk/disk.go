// Package disk replaces files as a whole.
package disk

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Replace puts a file with the data and the mode in the place of another, or where none was.
// A reader sees the old file or the new one, whole, and so does a process that comes after a
// crash. An error leaves the old file, and nothing beside it.
func Replace(path string, mode fs.FileMode, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(data)
	if err := errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
