"""Block to loop for workgroups of many waves: tensors lie spread over lanes, roles are branches, channels barriers."""
